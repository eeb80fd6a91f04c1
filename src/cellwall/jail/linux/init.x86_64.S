        .set BUF, 0
        .set USAGE, 16
        .set INFO, 256
        .text
        .globl _start
_start:
        sub     $512, %rsp
        mov     $4, %edi
        xor     %esi, %esi
        mov     $157, %eax
        syscall                         # prctl(PR_SET_DUMPABLE, 0)
        xor     %edi, %edi
        lea     mask(%rip), %rsi
        xor     %edx, %edx
        mov     $8, %r10d
        mov     $14, %eax
        syscall                         # rt_sigprocmask(SIG_BLOCK, SIGCHLD)
        mov     $3, %edi
        lea     message(%rip), %rsi
        mov     $0x4000, %edx
        mov     $46, %eax
        syscall                         # sendmsg
        mov     $4, %edi
        mov     $3, %eax
        syscall                         # close
reap:
        mov     $-1, %rdi
        lea     BUF+8(%rsp), %rsi
        mov     $0x40000001, %edx       # __WALL | WNOHANG
        lea     USAGE(%rsp), %r10
        mov     $61, %eax
        syscall
        test    %eax, %eax
        jle     sleep
        cmp     $2, %eax
        jne     reap
        movl    $0x44, BUF(%rsp)        # D
        movl    $0, BUF+4(%rsp)
        movl    $0, BUF+12(%rsp)
        mov     $3, %edi
        mov     %rsp, %rsi
        mov     $56, %edx               # tag, status, ru_utime, ru_stime, ru_maxrss
        mov     $1, %eax
        syscall
        jmp     reap
sleep:
        lea     mask(%rip), %rdi
        lea     INFO(%rsp), %rsi
        xor     %edx, %edx
        mov     $8, %r10d
        mov     $128, %eax
        syscall                         # rt_sigtimedwait
        cmp     $17, %eax
        jne     reap
        cmpl    $0, INFO+8(%rsp)        # si_code
        jg      reap
        mov     $3, %edi
        lea     mark(%rip), %rsi
        mov     $1, %edx
        mov     $1, %eax
        syscall
        jmp     reap
        .balign 8
mask:   .quad   1 << 16
word:   .ascii  "L"
mark:   .ascii  "?"
        .balign 8
vector: .quad   word, 1
rights: .quad   20                      # cmsg_len
        .long   1, 1, 4, 0              # SOL_SOCKET, SCM_RIGHTS, the descriptor
message:
        .quad   0
        .quad   0
        .quad   vector, 1
        .quad   rights, 24
        .quad   0
