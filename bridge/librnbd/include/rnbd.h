/* SPDX-License-Identifier: BSD-3-Clause */
/* A disk of an rnbd-server inside a program, without a kernel device or an NBD server in between.
 *
 * A program opens a disk, submits requests with cookies of its own, and reaps their ends, which come
 * in any order. The connection survives the loss of paths and restarts of the server, and each write
 * is carried out once. rnbd(3) has an example.
 *
 * Functions return 0 or a positive errno unless they say otherwise. Offsets and lengths are bytes. A
 * structure with `size` begins with it: set it to sizeof. Every other member that stays 0 has its
 * default. A function that is given NULL for its disk answers EINVAL. In a function
 * pthread_cancel(3) waits for its end.
 *
 * Threads: a disk is used by one thread at a time, whichever; the program sees to that. Different
 * disks are independent of each other: none waits until another one's thread calls the library.
 * Those of rnbd_open_beside() share a session, so that each thread has one of its own. A change
 * waits while another disk of the session has one of the same bytes under way. If the thread of that
 * disk is elsewhere, the wait may last for a heartbeat longer. No thread is started before
 * rnbd_open(). Threads of the library keep paths alive, and receive answers, while the program is
 * elsewhere.
 *
 * Signals: threads of the library take none. rnbd_open() and rnbd_open_beside() hold back those of
 * their caller until they return, and no signal ends rnbd_run() or rnbd_close().
 */
#ifndef RNBD_H
#define RNBD_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define RNBD_API __attribute__((visibility("default")))
#else
#define RNBD_API
#endif

typedef struct rnbd_disk rnbd_disk;

/* Why something failed: an errno for programs, a sentence for people. It is one line without control
 * characters, and so is each line for `log`. */
struct rnbd_error {
  int code;
  char text[508];
};

/* A disk works only in the process that opened it. In a child of fork() every function fails with
 * this and sends nothing, and rnbd_close() does nothing. Open it again in the child. */
#define RNBD_FORKED 10 /* ECHILD */

/* The importance of a line of the log. */
enum rnbd_log_level { RNBD_DEBUG, RNBD_INFO, RNBD_WARNING, RNBD_ERROR };

struct rnbd_options {
  size_t size;
  /* "KEY=VALUE" each, the last one NULL: the parameters of nbdkit-rnbd-plugin(1), which are the
   * options of rnbd-bridge(8). `lanes` is 1 unless it is set. `connect` means nothing here, and
   * `dynamic-export` is refused. NULL: none. */
  const char *const *settings;
  unsigned depth; /* requests that have been submitted and not reaped; 0 = 256, at most 4096 */
  unsigned reserved; /* 0 */
  void (*log)(void *context, enum rnbd_log_level level, const char *line); /* from any thread */
  void *log_context;
};

/* "0.1.0" */
RNBD_API const char *rnbd_version(void);
/* A sentence for an errno of this library. */
RNBD_API const char *rnbd_strerror(int error);

/* Opens the disk rnbd+tcp://HOST[:PORT]/DISK over TCP, rnbd://... over RDMA; also those of several
 * servers. Waits for the server until connect-timeout has passed. Opened without access=, a disk is
 * claimed by its first change, which no other session may have done.
 *
 * NULL: `error` (which may be NULL) says why, and so does errno: EINVAL (a word is wrong), ENOENT
 * (there is no such disk), EACCES or EPERM (it is not allowed), ETIMEDOUT, ECONNREFUSED,
 * EHOSTUNREACH (no server), ENXIO (no host has the name), ENOMEM, EAGAIN (the system has no descriptor or thread left), or the
 * server's own. Threads: any. */
RNBD_API rnbd_disk *rnbd_open(const char *uri, const struct rnbd_options *options,
                              struct rnbd_error *error);
/* Opens the same disk once more over the session of `disk`, with the same options, for another
 * thread. A session has as many as its option `lanes` says. The disks may be closed in any order.
 *
 * NULL: as rnbd_open(); ENOSPC (`lanes` are all used). Threads: any; `disk` may be in use. */
RNBD_API rnbd_disk *rnbd_open_beside(rnbd_disk *disk, struct rnbd_error *error);
/* Cancels what is under way, whose ends are not told, and frees the disk. A change that was
 * cancelled may be carried out all the same. The memory of requests is the program's again when this
 * returns, and nothing writes to it any more. A flush before it makes ended changes durable: this
 * does not. May wait for the server, for a few seconds at most. NULL does nothing. */
RNBD_API void rnbd_close(rnbd_disk *disk);

/* What the disk can do. */
enum rnbd_abilities {
  RNBD_CAN_CHANGE = 1u << 0,       /* otherwise it may only be read */
  RNBD_CAN_FLUSH = 1u << 1,        /* a flush means something: the server may hold data back */
  RNBD_CAN_FUA = 1u << 2,          /* single changes can be durable */
  RNBD_CAN_DISCARD = 1u << 3,
  RNBD_CAN_ZERO = 1u << 4,         /* zeroes are not sent as data */
  RNBD_CAN_ZERO_FAST = 1u << 5,    /* RNBD_FAST is of use */
  RNBD_IS_ROTATIONAL = 1u << 6
};

struct rnbd_info {
  size_t size;
  uint64_t bytes;        /* the size of the disk */
  uint32_t block;        /* other offsets and lengths are slower: see rnbd_submit() */
  uint32_t preferred;    /* multiples of it are the fastest */
  uint32_t max_request;  /* a read or write that is longer is sent in several pieces */
  uint32_t abilities;    /* enum rnbd_abilities */
  uint32_t depth;        /* as in the options */
  uint8_t uuid[16];      /* zeros: the server does not tell */
  char name[256];        /* of the disk at its server */
  uint32_t reserved;     /* 0 */
};

/* Fills in what is known, and clears what only a newer version knows; asks nobody. Errors: EINVAL (no
 * structure, or no size in it), RNBD_FORKED. */
RNBD_API int rnbd_describe(rnbd_disk *disk, struct rnbd_info *info);

enum rnbd_operation {
  RNBD_READ,
  RNBD_WRITE,
  RNBD_FLUSH,   /* changes that have ended are durable then */
  RNBD_DISCARD, /* the content is no longer needed; parts of blocks are left alone */
  RNBD_WRITE_ZEROES,
  /* Asks the server for the size of the disk. If it has grown, rnbd_describe() tells the new size
   * from this request's end on; if other requests that take a thread of the library, see
   * rnbd_submit(), are under way then, from the end of the last of these on. A smaller size changes
   * nothing. */
  RNBD_LOOK
};

enum rnbd_flags {
  RNBD_FUA = 1u << 0,  /* of a change: it is durable when it ends */
  RNBD_KEEP = 1u << 1, /* of zeroes: their space stays allocated */
  RNBD_FAST = 1u << 2  /* of zeroes: EOPNOTSUPP rather than slow */
};

struct rnbd_request {
  uint32_t operation; /* enum rnbd_operation */
  uint32_t flags;     /* enum rnbd_flags */
  uint64_t offset;
  uint64_t length;    /* 0 of a flush and a look */
  /* Of reads and writes: `length` bytes. They belong to the library until the end is reaped or the
   * disk is closed. Memory of a write must not change meanwhile: the server would see a damaged
   * frame and close the path, and the write would be sent again. */
  void *data;
  uint64_t cookie;    /* the program's own */
  uint64_t reserved;  /* 0 */
};

struct rnbd_end {
  uint64_t cookie;
  int error; /* 0 or an errno, see rnbd_submit() */
  int reserved;
};

/* Submits requests, all in one system call where that is possible, and returns the number that were
 * taken: fewer than `count` when `depth` of them have not been reaped. -1: none, errno is EAGAIN
 * (the same), EINVAL or RNBD_FORKED. The array is the program's again at once. Never waits for the
 * server. Requests that overlap and are under way together are carried out in any order.
 *
 * Requests of whole blocks are sent by this thread, without a lock that others hold for long, and
 * without new memory. Others (parts of blocks, looks, and changes before the disk is claimed) take a
 * thread of the library: a part of a block is read, changed and written back, and no other change of
 * this session comes in between.
 *
 * Ends have these errors: EINVAL (the range is not inside the disk; an unknown operation or flag; no
 * memory), EROFS (the disk may only be read), EPERM (another client may write to it), ESTALE (one
 * has written since it was opened: open it anew), EOPNOTSUPP (the server cannot), EIO or the errno
 * of `no-path-error` (no path has carried it for `no-path-timeout`), EIO (the server failed; or the
 * session or the disk is over for good: open it anew), EAGAIN (the system has no thread left), ENOSPC,
 * ENOMEM, or another one of the server.
 * A change that has failed may have been carried out, in part or whole. A flush fails with EIO,
 * once, if changes that had ended may be lost. */
RNBD_API int rnbd_submit(rnbd_disk *disk, const struct rnbd_request *requests, int count);

/* Stores up to `count` ends and returns their number. If there is none it waits for the first one,
 * for `timeout_ms` at most; -1 = without limit, 0 = not at all. 0: nothing has ended: the time has
 * passed, a signal was caught, nothing is under way, or memory lacks for now. While one request is
 * alone a signal need not end the wait: a program that must see each waits with ppoll(2) for
 * rnbd_fd(). -1: errno is EINVAL or RNBD_FORKED. */
RNBD_API int rnbd_reap(rnbd_disk *disk, struct rnbd_end *ends, int count, int timeout_ms);

/* Carries out one request and waits for its end, for programs that have one at a time. Returns its
 * error, as in rnbd_end; also EBUSY (others are under way or have not been reaped), or RNBD_FORKED.
 * `cookie` means nothing. */
RNBD_API int rnbd_run(rnbd_disk *disk, const struct rnbd_request *request);

/* A descriptor for poll(2) or epoll(7), to wait for this disk beside other things. When it is
 * readable call rnbd_reap() with a timeout of 0, until that returns 0: there may be ends, or
 * something to be done. It belongs to the disk. From the first call on other calls cost some more
 * system calls. -1: errno says why, EAGAIN (the system has no descriptor left), ENOMEM or
 * RNBD_FORKED. */
RNBD_API int rnbd_fd(rnbd_disk *disk);

/* Requests that were submitted and not reaped. */
RNBD_API unsigned rnbd_pending(rnbd_disk *disk);

#ifdef __cplusplus
}
#endif

#endif
