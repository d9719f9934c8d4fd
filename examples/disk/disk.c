/* SPDX-License-Identifier: BSD-3-Clause */
/* disk URI: writes 16 blocks of a disk at once, durably, reads them again and compares. */
#include <rnbd.h>
#include <stdio.h>
#include <string.h>

enum { BLOCKS = 16, SIZE = 4096 };

/* Submits a request for each block, and waits until all have ended. */
static int all(rnbd_disk *disk, uint32_t operation, uint32_t flags, char (*data)[SIZE]) {
  struct rnbd_request requests[BLOCKS] = {{0}};
  for (int i = 0; i < BLOCKS; ++i)
    requests[i] = (struct rnbd_request){operation, flags, (uint64_t)i * SIZE, SIZE, data[i], (uint64_t)i, 0};
  if (rnbd_submit(disk, requests, BLOCKS) != BLOCKS) return -1;
  struct rnbd_end ends[BLOCKS];
  for (int ended = 0, count; ended < BLOCKS; ended += count) {
    if ((count = rnbd_reap(disk, ends, BLOCKS, -1)) < 0) return -1;
    for (int i = 0; i < count; ++i)
      if (ends[i].error != 0)
        return fprintf(stderr, "block %d: %s\n", (int)ends[i].cookie, rnbd_strerror(ends[i].error)), -1;
  }
  return 0;
}

int main(int argc, char **argv) {
  static char written[BLOCKS][SIZE], found[BLOCKS][SIZE];
  struct rnbd_error error;
  rnbd_disk *disk = rnbd_open(argc > 1 ? argv[1] : "", NULL, &error);
  if (disk == NULL) return fprintf(stderr, "%s\n", error.text), 1;
  memset(written, 'a', sizeof(written));
  int failed = all(disk, RNBD_WRITE, RNBD_FUA, written) || all(disk, RNBD_READ, 0, found);
  rnbd_close(disk);
  return failed || memcmp(written, found, sizeof(found)) != 0;
}
