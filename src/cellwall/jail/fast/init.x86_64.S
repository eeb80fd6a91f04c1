# The first process of a sandbox of one program, locked down before it is executed (`jail.fast.single_program`).
# Descriptor 3 is the channel to the host; its first child is the context.
# Linked to a fixed address behind an ELF header of `machine_code.py`; a test compares.
        .set    BUF, 0                  # D, status, and from USAGE on what is reported of struct rusage
        .set    USAGE, 16
        .set    INFO, 256               # siginfo_t
        .text
        .globl  _start
_start:
        sub     $512, %rsp
        mov     $4, %edi                # PR_SET_DUMPABLE
        xor     %esi, %esi
        mov     $157, %eax              # prctl
        syscall
        xor     %edi, %edi              # SIG_BLOCK: it waits for SIGCHLD itself
        lea     mask(%rip), %rsi
        xor     %edx, %edx
        mov     $8, %r10d
        mov     $14, %eax               # rt_sigprocmask
        syscall
        mov     $3, %edi
        lea     word(%rip), %rsi
        mov     $1, %edx
        mov     $1, %eax                # write: L
        syscall

reap:                                   # every process that has ended
        mov     $-1, %rdi
        lea     BUF+8(%rsp), %rsi
        mov     $0x40000001, %edx       # __WALL | WNOHANG
        lea     USAGE(%rsp), %r10
        mov     $61, %eax               # wait4
        syscall
        test    %eax, %eax
        jle     sleep
        cmp     $2, %eax                # the context
        jne     reap
        movl    $0x44, BUF(%rsp)        # D
        movl    $0, BUF+4(%rsp)
        movl    $0, BUF+12(%rsp)
        mov     $3, %edi
        mov     %rsp, %rsi
        mov     $56, %edx               # to ru_maxrss
        mov     $1, %eax                # write
        syscall
        jmp     reap

sleep:
        lea     mask(%rip), %rdi
        lea     INFO(%rsp), %rsi
        xor     %edx, %edx
        mov     $8, %r10d
        mov     $128, %eax              # rt_sigtimedwait, for ever
        syscall
        cmp     $17, %eax               # SIGCHLD
        jne     reap
        cmpl    $0, INFO+8(%rsp)        # si_code: above 0 it is the kernel's: a process has ended
        jg      reap
        mov     $3, %edi
        lea     mark(%rip), %rsi
        mov     $1, %edx
        mov     $1, %eax                # write: ?, a process sent the signal
        syscall
        jmp     reap

        .balign 8
mask:   .quad   1 << 16                 # SIGCHLD
word:   .ascii  "L"
mark:   .ascii  "?"
