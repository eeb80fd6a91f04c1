# Functions that a worker calls (`jail.fast.syscall_script`): `clone` makes a child in this memory,
# `wait` releases it and stands still until it has left. Assembled into `machine_code.py`; a test compares.
#
# %rdi is the state, thirteen words:
        .set    RSP, 0                  # the registers of the caller of `wait`
        .set    RBX, 8
        .set    RBP, 16
        .set    R12, 24
        .set    R13, 32
        .set    R14, 40
        .set    R15, 48
        .set    CLONE_ARGS, 56          # struct clone_args
        .set    SCRIPT, 64              # the child's list
        .set    CONTEXT_SCRIPT, 72      # the list of the process forked in it
        .set    GO, 80                  # 32 bits: not 0 when the child may go on
        .set    TID, 84                 # 32 bits: 0 when the child has left; the kernel writes it
        .set    FAILED, 88              # the record of the call that failed,
        .set    RESULT, 96              # and what it returned
#
# A list is records of nine words: number, six arguments, the one good result or -1 for any, an
# errno that is no failure. Number -2 forks, -1 is the end.
        .text

clone:                                  # long clone(state): the child's pid, or -errno
        push    %rbx
        mov     %rdi, %rbx
        mov     CLONE_ARGS(%rbx), %rdi
        mov     $88, %esi
        mov     $435, %eax              # clone3
        syscall
        test    %rax, %rax
        jz      child
        pop     %rbx
        ret

        .balign 64
wait:                                   # long wait(state): 0; 1 in the forked process
        mov     %rsp, RSP(%rdi)         # the return address is there
        mov     %rbx, RBX(%rdi)
        mov     %rbp, RBP(%rdi)
        mov     %r12, R12(%rdi)
        mov     %r13, R13(%rdi)
        mov     %r14, R14(%rdi)
        mov     %r15, R15(%rdi)
        mov     %rdi, %rbx
        movl    $1, GO(%rbx)
        lea     GO(%rbx), %rdi
        mov     $1, %esi                # FUTEX_WAKE, one
        mov     $1, %edx
        mov     $202, %eax              # futex
        syscall
0:      mov     TID(%rbx), %edx
        test    %edx, %edx
        jz      1f
        lea     TID(%rbx), %rdi
        xor     %esi, %esi              # FUTEX_WAIT, while it is %edx, for ever
        xor     %r10d, %r10d
        mov     $202, %eax              # futex
        syscall
        jmp     0b
1:      mov     RBX(%rbx), %rbx
        xor     %eax, %eax
        ret

child:                                  # on its own stack, which it does not use
        cmpl    $0, GO(%rbx)
        jne     0f
        lea     GO(%rbx), %rdi
        xor     %esi, %esi              # FUTEX_WAIT, while it is 0, for ever
        xor     %edx, %edx
        xor     %r10d, %r10d
        mov     $202, %eax              # futex
        syscall
        jmp     child
0:      mov     SCRIPT(%rbx), %r12

walk:                                   # %r12 is the record
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
        mov     $56, %eax               # clone, as fork does
        syscall
        test    %rax, %rax
        jnz     check
        mov     CONTEXT_SCRIPT(%rbx), %r12
        jmp     walk
0:      syscall                         # the record's call
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
        mov     $231, %eax              # exit_group
        syscall
        hlt
any:
        cmp     $-4095, %rax            # from there on it is -errno
        jb      next
        mov     %rax, %rdx
        neg     %rdx
        cmp     64(%r12), %rdx
        jne     fail
next:
        add     $72, %r12
        jmp     walk

resume:                                 # a copy of the caller of `wait`: return from it
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
