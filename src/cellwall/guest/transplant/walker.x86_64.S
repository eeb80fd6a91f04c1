# The function that a context calls to be copied, or to become a copy (`walker.py`): it stands still in
# this code, walks lists of system calls and of steps over pages, and returns, as itself or as the
# process whose registers and pages the lists have put into place. Assembled into `walker.py`; a test
# compares. It uses no stack: the lists replace it.
#
# %rdi is the state:
        .set    RSP, 0                  # the registers of the caller; the return address is on its stack
        .set    RBX, 8
        .set    RBP, 16
        .set    R12, 24
        .set    R13, 32
        .set    R14, 40
        .set    R15, 48
        .set    MXCSR, 56               # control of SSE,
        .set    FCW, 60                 # and of x87
        .set    FIRST, 64               # the list that is walked
        .set    RESCUE, 72              # the list to go on at if a step fails; 0: the process ends
        .set    COUNT, 80               # number of extents
        .set    BYTES, 88               # bytes of the pages in them
        .set    FAILED, 96              # the record of the step that failed,
        .set    RESULT, 104             # and what it returned
        .set    EXTENTS, 112            # extents: pairs of address and length, as struct iovec
        .set    MOST, 120               # the most of them
#
# A record has ten words: number, six arguments, the one good result or -1 for any, and two addresses
# where the result is stored, or 0. Negative numbers are steps of our own.
        .set    RECORD, 80
        .set    SCAN, -9
        .set    BIG, 0x20000            # extents of this length and more are mapped, not read
        .set    BATCH, 256              # the most extents in one call; the writer bounds their lengths
        .text

park:                                   # long park(state): what `resume` says
        mov     %rsp, RSP(%rdi)
        mov     %rbx, RBX(%rdi)
        mov     %rbp, RBP(%rdi)
        mov     %r12, R12(%rdi)
        mov     %r13, R13(%rdi)
        mov     %r14, R14(%rdi)
        mov     %r15, R15(%rdi)
        stmxcsr MXCSR(%rdi)
        fnstcw  FCW(%rdi)
        mov     %rdi, %rbx
        mov     FIRST(%rbx), %r12

walk:                                   # %rbx is the state, %r12 the record
        mov     (%r12), %rax
        mov     8(%r12), %rdi
        mov     16(%r12), %rsi
        mov     24(%r12), %rdx
        mov     32(%r12), %r10
        mov     40(%r12), %r8
        mov     48(%r12), %r9
        test    %rax, %rax
        js      own
        syscall
        mov     56(%r12), %rdx
        cmp     $-1, %rdx
        je      0f
        cmp     %rdx, %rax
        jne     fail
0:      cmp     $-4095, %rax
        jae     fail
        mov     64(%r12), %rdx
        test    %rdx, %rdx
        jz      0f
        mov     %eax, (%rdx)
0:      mov     72(%r12), %rdx
        test    %rdx, %rdx
        jz      next
        mov     %eax, (%rdx)
next:
        add     $RECORD, %r12
        jmp     walk
fail:
        mov     %r12, FAILED(%rbx)
        mov     %rax, RESULT(%rbx)
        xor     %r12d, %r12d
        xchg    RESCUE(%rbx), %r12
        test    %r12, %r12
        jnz     walk
        mov     $113, %edi
        mov     $231, %eax              # exit_group
        syscall
        hlt
own:
        cmp     $-1, %rax
        je      resume
        cmp     $-2, %rax
        je      receive
        cmp     $-3, %rax
        je      compare
        cmp     $-4, %rax
        je      send
        cmp     $-5, %rax
        je      load
        cmp     $-6, %rax
        je      mend
        cmp     $-7, %rax
        je      table
        cmp     $-8, %rax
        je      onward
        cmp     $SCAN, %rax
        je      scan
        cmp     $-10, %rax
        je      clone
        jmp     fail

onward:                                 # (list): go on there
        mov     %rdi, %r12
        jmp     walk

clone:                                  # (flags): a child goes on; this process returns its pid
        xor     %esi, %esi
        xor     %edx, %edx
        xor     %r10d, %r10d
        xor     %r8d, %r8d
        mov     $56, %eax
        syscall
        test    %rax, %rax
        js      fail
        jnz     return
        movq    $0, RESCUE(%rbx)
        jmp     next

receive:                                # (socket, place): a length of eight bytes, then a list
        mov     %rsi, %r13
        mov     $8, %edx
        mov     $0x100, %r10d           # MSG_WAITALL
        xor     %r8d, %r8d
        xor     %r9d, %r9d
        mov     $45, %eax               # recvfrom
        syscall
        cmp     $8, %rax
        jne     fail
        mov     (%r13), %r14
        mov     8(%r12), %rdi
        mov     %r13, %rsi
        mov     %r14, %rdx
        mov     $0x100, %r10d
        xor     %r8d, %r8d
        xor     %r9d, %r9d
        mov     $45, %eax
        syscall
        cmp     %r14, %rax
        jne     fail
        mov     %r13, %r12
        jmp     walk

alike:                                  # go on at %r8, with ZF if the pages at %r13 and %r14 are alike
        mov     %r13, %rsi
        mov     %r14, %rdi
        mov     $64, %ecx
0:      movdqa  (%rsi), %xmm0
        movdqa  16(%rsi), %xmm1
        movdqa  32(%rsi), %xmm2
        movdqa  48(%rsi), %xmm3
        pcmpeqb (%rdi), %xmm0
        pcmpeqb 16(%rdi), %xmm1
        pcmpeqb 32(%rdi), %xmm2
        pcmpeqb 48(%rdi), %xmm3
        pand    %xmm1, %xmm0
        pand    %xmm3, %xmm2
        pand    %xmm2, %xmm0
        pmovmskb %xmm0, %eax
        cmp     $0xffff, %eax
        jne     1f
        add     $64, %rsi
        add     $64, %rdi
        dec     %ecx                    # 0 at the end sets ZF
        jnz     0b
1:      jmp     *%r8

compare:                                # (start, end, base, stride, longest): note pages that differ
        mov     %rdi, %r13              # base -1: note them all
        mov     %rdx, %r14
0:      cmp     16(%r12), %r13
        jae     next
        cmp     $-1, %r14
        je      2f
        lea     1f(%rip), %r8
        jmp     alike
1:      jz      5f
2:      lea     5f(%rip), %r9
        jmp     note
5:      add     $4096, %r13
        cmp     $-1, %r14
        je      0b
        add     32(%r12), %r14
        jmp     0b

note:                                   # go on at %r9, with the page at %r13 in the table of extents
        mov     COUNT(%rbx), %rax
        mov     EXTENTS(%rbx), %rdx
        test    %rax, %rax
        jz      3f
        mov     %rax, %rcx              # lengthen the last extent, or begin one
        shl     $4, %rcx
        lea     -16(%rdx,%rcx), %rcx
        mov     (%rcx), %rsi
        add     8(%rcx), %rsi
        cmp     %r13, %rsi
        jne     3f
        mov     40(%r12), %rsi
        cmp     8(%rcx), %rsi
        jbe     3f
        addq    $4096, 8(%rcx)
        jmp     4f
3:      cmp     MOST(%rbx), %rax
        jae     fail
        mov     %rax, %rcx
        shl     $4, %rcx
        add     %rdx, %rcx
        mov     %r13, (%rcx)
        movq    $4096, 8(%rcx)
        incq    COUNT(%rbx)
4:      addq    $4096, BYTES(%rbx)
        jmp     *%r9

mend:                                   # pages that differ become as they are in the base
scan:                                   # (start, end, base, kinds, longest, zeros): note them
        mov     %rdi, %r13
        mov     %rdx, %rbp
        mov     %r10, %r15              # a byte for each page:
0:      cmp     16(%r12), %r13
        jae     next
        movzbl  (%r15), %eax
        inc     %r15
        test    %eax, %eax              # 0: neither the base has it, nor is it of interest;
        jz      5f
        cmp     $2, %eax                # 1: the base has it, but it is of no interest;
        jb      4f
        mov     48(%r12), %r14          # 3: is it zeros?
        ja      2f
        mov     %rbp, %r14              # 2: is it as the base has it?
        add     $4096, %rbp
2:      lea     1f(%rip), %r8
        jmp     alike
1:      jz      5f
        lea     5f(%rip), %r9
        cmpq    $SCAN, (%r12)
        je      note
        mov     %r14, %rsi
        mov     %r13, %rdi
        mov     $512, %ecx
        rep movsq
        jmp     5f
4:      add     $4096, %rbp
5:      add     $4096, %r13
        jmp     0b

send:                                   # (descriptor): write the pages of all extents
        xor     %r13d, %r13d
0:      mov     %r13, %rsi
        shl     $4, %rsi
        add     EXTENTS(%rbx), %rsi
        mov     %rsi, %rdx
        xor     %r14d, %r14d            # bytes,
        xor     %r15d, %r15d            # and number of this batch
1:      cmp     COUNT(%rbx), %r13
        jae     2f
        cmp     $BATCH, %r15
        jae     2f
        add     8(%rdx), %r14
        add     $16, %rdx
        inc     %r13
        inc     %r15
        jmp     1b
2:      test    %r15, %r15
        jz      next
        mov     8(%r12), %rdi
        mov     %r15, %rdx
        mov     $20, %eax               # writev
        syscall
        cmp     %r14, %rax
        jne     fail
        jmp     0b

table:                                  # (descriptor): write the extents themselves
        mov     EXTENTS(%rbx), %rsi
        mov     COUNT(%rbx), %rdx
        shl     $4, %rdx
        jz      next
        mov     %rdx, %r13
        mov     $1, %eax                # write
        syscall
        cmp     %r13, %rax
        jne     fail
        jmp     next

load:                                   # (descriptor, offset): bring in the pages of all extents
        mov     %rsi, %rbp              # where the next ones lie in the file
        xor     %r13d, %r13d
0:      cmp     COUNT(%rbx), %r13
        jae     next
        mov     %r13, %rsi
        shl     $4, %rsi
        add     EXTENTS(%rbx), %rsi
        mov     8(%rsi), %rax
        cmp     $BIG, %rax
        jae     3f
        mov     %rsi, %rcx
        xor     %r14d, %r14d
        xor     %r15d, %r15d
1:      cmp     COUNT(%rbx), %r13
        jae     2f
        cmp     $BATCH, %r15
        jae     2f
        mov     8(%rcx), %rax
        cmp     $BIG, %rax
        jae     2f
        add     %rax, %r14
        add     $16, %rcx
        inc     %r13
        inc     %r15
        jmp     1b
2:      mov     8(%r12), %rdi
        mov     %r15, %rdx
        mov     %rbp, %r10
        xor     %r8d, %r8d
        mov     $295, %eax              # preadv
        syscall
        cmp     %r14, %rax
        jne     fail
        add     %r14, %rbp
        jmp     0b
3:      mov     (%rsi), %rdi            # a private mapping of the file, shared until it is written to
        mov     %rax, %r14
        mov     %rax, %rsi
        mov     $3, %edx
        mov     $0x12, %r10d            # MAP_PRIVATE, MAP_FIXED
        mov     8(%r12), %r8
        mov     %rbp, %r9
        mov     $9, %eax                # mmap
        syscall
        cmp     $-4095, %rax
        jae     fail
        add     %r14, %rbp
        inc     %r13
        jmp     0b

resume:                                 # (result): return from the `park` whose registers we have
        mov     %rdi, %rax
return:
        mov     %rbx, %rdi
        fldcw   FCW(%rdi)
        ldmxcsr MXCSR(%rdi)
        mov     RSP(%rdi), %rsp
        mov     RBX(%rdi), %rbx
        mov     RBP(%rdi), %rbp
        mov     R12(%rdi), %r12
        mov     R13(%rdi), %r13
        mov     R14(%rdi), %r14
        mov     R15(%rdi), %r15
        ret
