# shellcheck shell=bash
# SPDX-License-Identifier: BSD-3-Clause
# A guest without an operating system, for qemu and libvirt. Its boot sector counts writes to the second
# sector of its disk for ever, and behind that number those that failed. Source it behind lib.sh.

# counting_image FILE: its disk, of 16 MiB.
counting_image() {
  requires as ld
  as --32 -o boot.o - <<'ASM'
  .code16
  .globl _start
_start:
  cli
  xor %ax, %ax
  mov %ax, %ds
  mov %ax, %es
  mov %ax, %ss
  mov $0x7c00, %sp
  sti
again:
  incl 0x8000
  mov $0x0301, %ax    # write a sector
  mov $0x8000, %bx    # from here
  mov $0x0002, %cx    # to the second one
  mov $0x0080, %dx    # of the first disk
  int $0x13
  jnc again
  incl 0x8004
  jmp again
  .org 510
  .word 0xaa55
ASM
  ld -m elf_i386 -Ttext 0x7c00 --oformat binary -o "$1" boot.o
  truncate -s 16M "$1"
}

# count_in FILE OFFSET: 512 for the writes, 516 for the failed ones.
count_in() { od -An -tu4 -j"$2" -N4 "$1" | tr -d ' '; }
