# Called from a worker. See the layout in machine.py.
        .set RSP, 0
        .set RBX, 8
        .set RBP, 16
        .set R12, 24
        .set R13, 32
        .set R14, 40
        .set R15, 48
        .set CLONE_ARGS, 56
        .set SCRIPT, 64
        .set CONTEXT_SCRIPT, 72
        .set GO, 80
        .set TID, 84
        .set FAILED, 88
        .set RESULT, 96
        .text
clone:
        push    %rbx
        mov     %rdi, %rbx
        mov     CLONE_ARGS(%rbx), %rdi
        mov     $88, %esi
        mov     $435, %eax
        syscall
        test    %rax, %rax
        jz      child
        pop     %rbx
        ret
        .balign 64
wait:
        mov     %rsp, RSP(%rdi)
        mov     %rbx, RBX(%rdi)
        mov     %rbp, RBP(%rdi)
        mov     %r12, R12(%rdi)
        mov     %r13, R13(%rdi)
        mov     %r14, R14(%rdi)
        mov     %r15, R15(%rdi)
        mov     %rdi, %rbx
        movl    $1, GO(%rbx)
        lea     GO(%rbx), %rdi
        mov     $1, %esi
        mov     $1, %edx
        mov     $202, %eax
        syscall
0:      mov     TID(%rbx), %edx
        test    %edx, %edx
        jz      1f
        lea     TID(%rbx), %rdi
        xor     %esi, %esi
        xor     %r10d, %r10d
        mov     $202, %eax
        syscall
        jmp     0b
1:      mov     RBX(%rbx), %rbx
        xor     %eax, %eax
        ret
child:
        cmpl    $0, GO(%rbx)
        jne     0f
        lea     GO(%rbx), %rdi
        xor     %esi, %esi
        xor     %edx, %edx
        xor     %r10d, %r10d
        mov     $202, %eax
        syscall
        jmp     child
0:      mov     SCRIPT(%rbx), %r12
walk:
        mov     (%r12), %rax
        cmp     $-1, %rax
        je      resume
        mov     8(%r12), %rdi
        mov     16(%r12), %rsi
        mov     24(%r12), %rdx
        mov     32(%r12), %r10
        mov     40(%r12), %r8
        mov     48(%r12), %r9
        cmp     $-2, %rax
        jne     0f
        mov     $56, %eax
        syscall
        test    %rax, %rax
        jnz     check
        mov     CONTEXT_SCRIPT(%rbx), %r12
        jmp     walk
0:      syscall
check:
        mov     56(%r12), %rdx
        cmp     $-1, %rdx
        je      any
        cmp     %rdx, %rax
        je      next
fail:
        mov     %r12, FAILED(%rbx)
        mov     %rax, RESULT(%rbx)
        mov     $1, %edi
        mov     $231, %eax
        syscall
        hlt
any:
        cmp     $-4095, %rax
        jb      next
        mov     %rax, %rdx
        neg     %rdx
        cmp     64(%r12), %rdx
        jne     fail
next:
        add     $72, %r12
        jmp     walk
resume:
        mov     %rbx, %rdi
        mov     RSP(%rdi), %rsp
        mov     RBX(%rdi), %rbx
        mov     RBP(%rdi), %rbp
        mov     R12(%rdi), %r12
        mov     R13(%rdi), %r13
        mov     R14(%rdi), %r14
        mov     R15(%rdi), %r15
        mov     $1, %eax
        ret
