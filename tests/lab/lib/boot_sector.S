// SPDX-License-Identifier: BSD-3-Clause
# The first sector of a disk that a machine is booted from: it copies sectors 1 to 8 to 2048 to 2055
# by the BIOS, and leaves qemu with status 67, or 69 if the disk failed.
# Source: Ralf Brown's Interrupt List, INT 13h functions 42h and 43h; qemu's isa-debug-exit.
        .code16
        .globl  _start
_start: ljmp    $0, $begin
begin:  xorw    %ax, %ax
        movw    %ax, %ds
        movw    %ax, %ss
        movw    $_start, %sp
        movb    %dl, drive
        movb    $0x42, %ah              # read
        movw    $packet, %si
        int     $0x13
        jc      fail
        movl    $2048, sector
        movw    $8, count
        movw    $0x4300, %ax            # write
        movb    drive, %dl
        movw    $packet, %si
        int     $0x13
        jc      fail
        movb    $33, %al
        jmp     leave
fail:   movb    $34, %al
leave:  movw    $0xf4, %dx
        outb    %al, %dx
hang:   hlt
        jmp     hang

drive:  .byte   0
        .balign 4
packet: .byte   16, 0
count:  .word   8
        .word   0x8000, 0               # where to, and its segment
sector: .quad   1
        .org    510
        .word   0xaa55
