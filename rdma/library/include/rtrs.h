/* SPDX-License-Identifier: BSD-3-Clause */
/* Requests to a server over RDMA or TCP. They survive the loss of paths and are carried out once.
 *
 * A client connects, sends a message with data, gives room for an answer, and gets the result. A
 * server listens, and a handler ends each request, at once or later, from any thread. The tutorial
 * is docs/library.md. Functions return 0 or a positive errno unless they say otherwise. A structure
 * begins with its size: set it to sizeof. Every other member that stays 0 has its default.
 * A function that is given NULL for its client, server, brick or map answers EINVAL. In a function
 * pthread_cancel(3) waits for its end.
 */
#ifndef RTRS_H
#define RTRS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define RTRS_API __attribute__((visibility("default")))
#else
#define RTRS_API
#endif

typedef struct rtrs_client rtrs_client;
typedef struct rtrs_server rtrs_server;
typedef struct rtrs_session rtrs_session; /* a client, as its server knows it */
typedef struct rtrs_request rtrs_request; /* one request at the server, until it is finished */

/* Why something failed: an errno for programs, a sentence for people. It is one line without control
 * characters, and so is each line for `log`: what others wrote is escaped, \xNN. */
struct rtrs_error {
  int code;
  char text[508];
};

#define RTRS_MAX_MESSAGE 240 /* bytes of a message; more data go into `out` */
#define RTRS_FOREVER 0xFFFFFFFFu /* of a time in milliseconds: no limit */

/* The outcome is unknown: the server was restarted, or no path came back in time, before a
 * request's answer was here. It was carried out once or not at all. Every other error is the
 * server's answer, or says that the request was not carried out. */
#define RTRS_UNKNOWN_OUTCOME 131 /* ENOTRECOVERABLE */

/* A client, server or brick works only in the process that made it. In a child of fork() every
 * function that returns an errno fails with this, and sends nothing; what only closes or frees does
 * nothing. Connect again in the child. */
#define RTRS_FORKED 10 /* ECHILD */

/* The treatment of a request. */
enum rtrs_flags {
  /* It may be carried out more than once (a read does no harm): the server keeps no answer for it,
   * and it is sent again after a restart of the server. */
  RTRS_REPEATABLE = 1u << 0,
  /* After a restart of the server it is sent again under its id, marked RTRS_MAYBE_DONE: the
   * application recognises what it has recorded. */
  RTRS_RESEND = 1u << 1,
  /* EAGAIN instead of waiting for a permit or a path. A request with RTRS_CONTROL waits for its
   * turn all the same. */
  RTRS_NOWAIT = 1u << 2,
  /* On the control connection: in the order of the calls, beside the I/O of others. */
  RTRS_CONTROL = 1u << 3,
  /* Of an incoming request: a server before this one may have carried it out. */
  RTRS_MAYBE_DONE = 1u << 4
};

/* Whether connections over TCP are encrypted (TLS 1.3). */
enum rtrs_tls {
  RTRS_TLS_OFF,
  RTRS_TLS_ON,     /* of a server: its clients choose */
  RTRS_TLS_REQUIRE /* nothing is sent or taken in clear */
};

/* The importance of a line of the log. */
enum rtrs_log_level { RTRS_DEBUG, RTRS_INFO, RTRS_WARNING, RTRS_ERROR };

/* Identifies a request: the same on every machine and each time that it is sent; another one for
 * every other request. */
struct rtrs_id {
  uint8_t client[16];
  uint64_t number; /* grows with each request of the client */
};

/* "0.1.0" */
RTRS_API const char *rtrs_version(void);
/* A sentence for an error of this library. */
RTRS_API const char *rtrs_strerror(int error);

/* ---- Client --------------------------------------------------------------------------------- */

struct rtrs_client_options {
  size_t size;
  const char *session_name; /* unique at the server, without '/' and '.'; NULL makes one */
  const char *policy;       /* "min-inflight" (default), "round-robin" or "min-latency" */
  unsigned lanes;           /* connections per path for I/O; 0 = one per CPU, at most 4 */
  unsigned connect_timeout_ms; /* 0 = 10000 */
  unsigned no_path_timeout_ms; /* requests wait so long for a path; 0 = 30000, or RTRS_FOREVER */
  unsigned call_timeout_ms;    /* of rtrs_call(), in steps of 250 ms; 0 = none */
  unsigned heartbeat_interval_ms; /* 0 = 500 */
  unsigned heartbeat_misses;      /* 0 = 4 */
  unsigned spin_us; /* look so long for an answer before sleeping, at most 1000; 0 = not */
  int no_digests;   /* TCP: send no checksums of frames and data */
  void (*log)(void *context, enum rtrs_log_level level, const char *line); /* from any thread */
  void *log_context;
  enum rtrs_tls tls;            /* OFF or REQUIRE; then all paths must lead over TCP */
  int tls_no_verify_peer;       /* accept a server without a certificate of a known CA */
  const char *tls_psk;          /* file of shared keys, NAME:HEX a line */
  const char *tls_certificates; /* directory of ca-cert.pem, client-cert.pem, client-key.pem */
  const char *tls_username;     /* the key's name in the file; NULL = its only one */
  /* Without TLS, and over RDMA: file of shared keys; both ends prove that they have the same. */
  const char *auth_psk;
  const char *auth_username; /* the key's name in it; NULL = its only one */
};

/* A request without a waiting caller. It and all memory that it names belong to the library from
 * rtrs_submit() until its end: until `done` is called or rtrs_next() has returned it. */
struct rtrs_operation {
  size_t size;
  unsigned flags;
  const void *message; /* at most RTRS_MAX_MESSAGE bytes */
  size_t message_length;
  const struct iovec *out; /* data for the server */
  int out_count;
  const struct iovec *in; /* room for the answer */
  int in_count;
  /* Called when it has ended, on a thread of the library, where you may submit but not wait. NULL
   * puts the operation into the queue of rtrs_next(). */
  void (*done)(struct rtrs_operation *operation);
  void *context; /* the caller's own */
  int error;     /* its result: 0 or an errno */
  size_t answer_length;
  void *private_data; /* of the library, until the end */
  /* Not 0: as rtrs_ask(), for an answer of at most so many bytes; `in_count` must be 0. */
  size_t most;
  void *answer; /* for rtrs_free(); NULL when it is empty */
};

struct rtrs_limits {
  size_t size;
  uint32_t queue_depth;  /* requests in flight */
  uint32_t max_io_size;  /* bytes in one message; the library cuts larger data */
};

/* A path as it is now. */
struct rtrs_path {
  size_t size;
  char address[256]; /* "tcp:10.0.0.1:1234" */
  int connected;
  int in_use; /* takes new requests */
  uint64_t requests;
  unsigned in_flight;
  uint64_t latency_ns; /* of the last heartbeat */
  uint64_t silent_ns;  /* has carried nothing for so long while another one did; 0 = it answers */
  uint64_t silences;   /* how often that began */
  uint64_t moved;      /* requests that have left it for another path then */
};

/* Connects to rtrs+tcp://HOST[:PORT][,HOST[:PORT]...][/SESSION-NAME] over TCP, to rtrs://... over
 * RDMA. Each address is one path to the same server and may begin with "tcp:", "rdma:" and a source
 * address with '@'. Port 1234 unless said. A server that is not there yet is tried again until
 * connect_timeout_ms. NULL: `error` (which may be NULL) says why, and so does errno. */
RTRS_API rtrs_client *rtrs_connect(const char *uri, const struct rtrs_client_options *options,
                                   struct rtrs_error *error);
/* Ends what runs: calls of other threads end with ECANCELED within 250 ms (carried out once, or not
 * at all), and so does every call that follows. Operations that have not ended end with ECANCELED,
 * too, and are reported. rtrs_next(), rtrs_cancel(), rtrs_fd() and rtrs_unregister_memory() work as
 * before until rtrs_disconnect(). NULL does nothing. Threads: any, also in `done`. */
RTRS_API void rtrs_shutdown(rtrs_client *client);
/* Ends what runs as rtrs_shutdown() does, waits until all calls have returned, and frees the client.
 * Operations that have not ended end with ECANCELED. Threads: any, but not in `done`; nobody may
 * begin a call meanwhile, or know the client after it. NULL does nothing. */
RTRS_API void rtrs_disconnect(rtrs_client *client);

/* Sends a request and waits for its end. `out` are data for the server, `in` is room for the
 * answer; `answer_length` (may be NULL) gets the number of bytes filled.
 *
 * Errors: the handler's; RTRS_UNKNOWN_OUTCOME; EHOSTUNREACH (no path in time, certainly not carried
 * out); ETIMEDOUT (call_timeout_ms has passed: carried out once, now or later, or not at all);
 * EAGAIN (RTRS_NOWAIT); ENOBUFS (the server has no memory for such a large request now); EDEADLK
 * (called in `done`); ECANCELED (rtrs_shutdown()); EIO (the session is over). EMSGSIZE: the message is longer than
 * RTRS_MAX_MESSAGE, or the data are more than the server takes. An answer that is longer than the
 * room gives EMSGSIZE, too; then the request was carried out. Threads: any. */
RTRS_API int rtrs_call(rtrs_client *client, const void *message, size_t message_length,
                       const struct iovec *out, int out_count, const struct iovec *in, int in_count,
                       size_t *answer_length, unsigned flags);

/* The same for an answer of unknown length, of `most` bytes at most: `answer` is memory for
 * rtrs_free(), or NULL when it is empty, and after an error. The server sets `most` aside while it
 * carries the request out. Errors: also ENOMEM (here, for the answer: it was carried out). */
RTRS_API int rtrs_ask(rtrs_client *client, const void *message, size_t message_length,
                      const struct iovec *out, int out_count, size_t most, void **answer,
                      size_t *answer_length, unsigned flags);
/* Frees memory of rtrs_ask() or rtrs_take_data(), as free() does. Large memory is kept for the next
 * large request or answer, because new memory is slower; the system may take it any time. NULL does
 * nothing. Threads: any. */
RTRS_API void rtrs_free(void *memory);

/* Sends a request; its end is reported by `done` or rtrs_next(). Waits for a permit as rtrs_call()
 * does. Errors: EAGAIN (RTRS_NOWAIT), EINVAL, EMSGSIZE, ECANCELED (rtrs_shutdown()); the operation
 * is the caller's then. Threads: any. */
RTRS_API int rtrs_submit(rtrs_client *client, struct rtrs_operation *operation);
/* Cancels an operation, which may be carried out all the same, once. 0: it is the caller's again,
 * and its end will not be reported. ENOENT: it has ended, and that is reported. Threads: any. */
RTRS_API int rtrs_cancel(rtrs_client *client, struct rtrs_operation *operation);
/* Readable while rtrs_next() returns something else than 0. Belongs to the client. -1: errno says
 * why, EAGAIN (the system has no descriptor or thread left), ECANCELED (shut down before the first
 * operation) or RTRS_FORKED. Threads: any. */
RTRS_API int rtrs_fd(rtrs_client *client);
/* Stores up to `count` ended operations and returns their number. Does not wait. -1 with errno
 * ECANCELED: the client was shut down, and none is left. Threads: any. */
RTRS_API int rtrs_next(rtrs_client *client, struct rtrs_operation **operations, int count);

/* Lets requests use this memory without a copy over RDMA: `out` is sent from it, `in` is received
 * into it. Over TCP that is so for all memory. The caller owns it, and must keep it until it is
 * unregistered or the client is gone. Until then the server can write all of it at any time. A
 * request in it that is cancelled (rtrs_cancel(), call_timeout_ms) breaks its path, which comes
 * back by itself. Requests with RTRS_CONTROL copy. Takes as long as the system needs to lock it.
 *
 * Errors: EINVAL (it is empty), EEXIST, ENOMEM (it cannot be locked), EIO (the session is over).
 * Threads: any. */
RTRS_API int rtrs_register_memory(rtrs_client *client, void *memory, size_t length,
                                  struct rtrs_error *error);
/* No request that uses it may be under way. Errors: ENOENT. Threads: any, also after
 * rtrs_shutdown(). */
RTRS_API int rtrs_unregister_memory(rtrs_client *client, void *memory, size_t length);

RTRS_API void rtrs_client_limits(rtrs_client *client, struct rtrs_limits *limits);
/* 0 when the session is over for good: every call answers EIO. Also in a child of fork(). */
RTRS_API int rtrs_client_alive(rtrs_client *client);
/* Fills up to `count` paths, each with its `size` set; returns how many there are. */
RTRS_API int rtrs_client_paths(rtrs_client *client, struct rtrs_path *paths, int count);
/* Adds or removes a path: "[tcp:|rdma:][SOURCE@]HOST[:PORT]". Errors: EINVAL, EEXIST, ENOSPC,
 * ENOENT, EBUSY (the last one), EIO. */
RTRS_API int rtrs_add_path(rtrs_client *client, const char *path, struct rtrs_error *error);
RTRS_API int rtrs_remove_path(rtrs_client *client, const char *path, struct rtrs_error *error);
RTRS_API int rtrs_set_policy(rtrs_client *client, const char *policy);

/* ---- Bricks --------------------------------------------------------------------------------- */

/* Memory of an rnbd-server with an export brick:..., in blocks of 2 MiB that a client allocates,
 * maps, and reads and writes by itself: over RDMA the server's processor takes no part. The id of a
 * block is a virtual address of 64 bits, a multiple of the block's size. docs/brick.md explains the
 * words. */
typedef struct rtrs_brick rtrs_brick;
typedef struct rtrs_map rtrs_map; /* a mapped block */

#define RTRS_BRICK_BLOCK 2097152u

/* Of rtrs_brick_map(). Every map may be read. */
enum rtrs_map_flags {
  RTRS_MAP_WRITE = 1u << 1,
  RTRS_MAP_OTHERS_READ = 1u << 2,  /* other clients may map it for reading meanwhile */
  RTRS_MAP_OTHERS_WRITE = 1u << 3, /* likewise for writing */
  RTRS_MAP_NOWAIT = 1u << 4        /* EAGAIN rather than wait for slow storage */
};

/* Of rtrs_brick_alloc() and rtrs_brick_free(): all blocks or none. */
#define RTRS_BRICK_ALL 1u

enum rtrs_brick_durability {
  RTRS_BRICK_NEVER, /* plain memory */
  RTRS_BRICK_SYNC   /* data that rtrs_brick_sync() has covered */
};

struct rtrs_brick_info {
  size_t size;
  uint64_t blocks;    /* that can be allocated */
  uint64_t free;      /* of them */
  uint64_t in_memory; /* blocks that memory has room for */
  uint64_t epoch;     /* another number than before: data without a sync may be lost */
  uint32_t max_maps;  /* of this client at a time */
  uint32_t lease_ms;  /* until a recalled block must be unmapped */
  enum rtrs_brick_durability durability;
};

enum rtrs_brick_listing {
  RTRS_BRICK_ALLOCATED,
  RTRS_BRICK_MINE,   /* mapped by this client */
  RTRS_BRICK_MAPPED, /* by anybody */
  RTRS_BRICK_RECALLED /* wanted back from this client */
};

/* Blocks in a row; flags: 1 in memory, 2 in slow storage, 4 mapped for reading, 8 for writing. */
struct rtrs_brick_extent {
  uint64_t id;
  uint64_t blocks;
  unsigned flags;
};

struct rtrs_brick_range {
  uint64_t address; /* id of a block plus offset */
  uint64_t length;
};

/* Opens rnbd+tcp://HOST[:PORT]/EXPORT over TCP, rnbd://... over RDMA. Of the options `policy` and
 * `call_timeout_ms` mean nothing here. Only one client at a time may write. NULL: `error` (which
 * may be NULL) says why, and so does errno. Threads: all functions any, but rtrs_brick_close(). */
RTRS_API rtrs_brick *rtrs_brick_open(const char *uri, const struct rtrs_client_options *options,
                                     struct rtrs_error *error);
/* Ends what runs with ECANCELED, waits until all calls have returned, and ends and frees all maps.
 * Nobody may begin a call meanwhile. NULL does nothing. */
RTRS_API void rtrs_brick_close(rtrs_brick *brick);

RTRS_API int rtrs_brick_describe(rtrs_brick *brick, struct rtrs_brick_info *info);
/* Durable when it returns 0; a new block reads as zeros. Errors: EEXIST, ENOSPC, EINVAL (an id
 * inside a block), EROFS, EIO (the session is over); without RTRS_BRICK_ALL some may be
 * allocated. */
RTRS_API int rtrs_brick_alloc(rtrs_brick *brick, uint64_t id, uint32_t count, unsigned flags);
/* Errors: EBUSY (mapped by anybody), ENOENT, and as above. */
RTRS_API int rtrs_brick_free(rtrs_brick *brick, uint64_t id, uint32_t count, unsigned flags);
/* Maps one block. Errors: EBUSY (another map excludes it), ENOENT (not allocated), EAGAIN (memory
 * is full of maps, ask again), EMFILE, EROFS, EIO (also when the memory path is lost, see
 * rtrs_brick_recover()). */
RTRS_API int rtrs_brick_map(rtrs_brick *brick, uint64_t id, unsigned flags, rtrs_map **map);
/* Ends a map and frees it, even with an error. 0: nothing lands in the block any more. No read or
 * write of it may be under way. Errors: ENOENT (it has ended before), EIO. */
RTRS_API int rtrs_brick_unmap(rtrs_map *map);
/* One-sided, inside the block. 0 after a write: this client's reads see it, and so does everybody
 * behind rtrs_brick_sync() or rtrs_brick_unmap().
 *
 * Errors: EINVAL (outside the block), EACCES (not mapped for that), EIO (the memory path is lost:
 * all maps are dead, and the outcome of a write is unknown until rtrs_brick_recover()). */
RTRS_API int rtrs_brick_read(rtrs_map *map, uint64_t offset, void *into, size_t length);
RTRS_API int rtrs_brick_write(rtrs_map *map, uint64_t offset, const void *from, size_t length);
/* When it returns, earlier writes to these ranges are durable; with `count` 0, to all blocks mapped
 * for writing. Errors: ENOENT (a range is not allocated), EOPNOTSUPP (RTRS_BRICK_NEVER; the writes
 * are visible all the same), E2BIG (more than 4096 ranges), EIO. */
RTRS_API int rtrs_brick_sync(rtrs_brick *brick, const struct rtrs_brick_range *ranges, int count);
/* Fills up to `count` extents with blocks from `first` on; `found` tells how many. */
RTRS_API int rtrs_brick_list(rtrs_brick *brick, enum rtrs_brick_listing what, uint64_t first,
                             struct rtrs_brick_extent *extents, int count, int *found);
/* Waits until nothing of a lost memory path can land any more, and makes another one. All maps are
 * dead then; rtrs_brick_unmap() frees them. Does nothing while the path lives. */
RTRS_API int rtrs_brick_recover(rtrs_brick *brick, struct rtrs_error *error);
/* `wanted` is called when blocks are wanted back (RTRS_BRICK_RECALLED tells which), on a thread of
 * the library, where it must not block nor call this interface. A client that keeps them longer
 * than lease_ms loses the memory path. NULL ends that. */
RTRS_API void rtrs_brick_on_recall(rtrs_brick *brick, void (*wanted)(void *context), void *context);

/* ---- Server --------------------------------------------------------------------------------- */

/* A request as it came; valid until it is finished. */
struct rtrs_incoming {
  size_t size;
  rtrs_request *request;
  rtrs_session *session;
  const void *message;
  size_t message_length;
  /* The client's data. In one message the client could still change them: copy, then check. */
  const void *data;
  size_t data_length;
  size_t room;   /* bytes that the answer may have */
  void *answer;  /* memory of that size: an answer written here saves a copy; NULL when room is
                    0 or larger than 4088 */
  unsigned flags; /* RTRS_REPEATABLE, RTRS_RESEND, RTRS_MAYBE_DONE */
  struct rtrs_id id;
};

/* The handler of a server. All but `request` may be NULL. `request` comes on an event loop, where
 * it must not block, or on one of the workers (rtrs_server_options.workers); the others come on the
 * event loop of their session. C++ exceptions from them go to the log. */
struct rtrs_server_ops {
  size_t size;
  /* Must lead to exactly one rtrs_finish(), now or later, even if it throws. */
  void (*request)(void *context, const struct rtrs_incoming *incoming);
  void (*session_up)(void *context, rtrs_session *session);
  /* Everything of the session has been finished; nothing more comes from it. */
  void (*session_down)(void *context, rtrs_session *session);
  /* So many paths of the session are connected now. 0: its client may come back. */
  void (*paths_changed)(void *context, rtrs_session *session, unsigned paths);
};

struct rtrs_server_options {
  size_t size;
  unsigned loops;   /* event loops; 0 = 1: no two handlers run at the same time */
  unsigned workers; /* threads that run `request` instead of the loops; 0 = none */
  unsigned queue_depth;      /* requests in flight per session; 0 = 256 */
  unsigned max_io_size;      /* bytes in one message, a multiple of 4096; 0 = 256 KiB */
  uint64_t max_request_size; /* bytes of data of a request or an answer; 0 = 1 GiB */
  uint64_t request_memory;   /* for all requests and answers larger than max_io_size; 0 = 4 GiB or
                                a quarter of the RAM */
  uint64_t memory_limit;     /* for the messages of all paths; 0 = 1 GiB or a quarter of the RAM */
  unsigned max_sessions;     /* 0 = 256 */
  unsigned session_linger_ms; /* a session without paths is kept so long; 0 = 30000 */
  unsigned heartbeat_interval_ms; /* 0 = 500 */
  unsigned heartbeat_misses;      /* 0 = 4 */
  int no_digests;                 /* TCP: send no checksums of frames and data */
  void (*log)(void *context, enum rtrs_log_level level, const char *line); /* from any thread */
  void *log_context;
  enum rtrs_tls tls;            /* of listeners on TCP */
  int tls_no_verify_peer;       /* clients need no certificate, and are nobody then */
  const char *tls_psk;          /* file of shared keys, NAME:HEX a line, one per client */
  const char *tls_certificates; /* directory of ca-cert.pem, server-cert.pem, server-key.pem */
  /* File of shared keys, one per client: a client without TLS must prove that it has one of them.
   * The same as tls_psk, if that is set, too. */
  const char *auth_psk;
};

/* Listens on rtrs+tcp://HOST[:PORT][,...] or rtrs://...; HOST may be "*", PORT 0 is any free one.
 * NULL: `error` says why, and so does errno. */
RTRS_API rtrs_server *rtrs_listen(const char *uri, const struct rtrs_server_ops *ops, void *context,
                                  const struct rtrs_server_options *options,
                                  struct rtrs_error *error);
/* Stops, waits up to `drain_ms` for running requests, and frees the server. EBUSY: the handler has
 * still not finished some; the server serves nobody any more, and its memory stays. In a child of
 * fork() it does nothing, and neither does rtrs_finish(). */
RTRS_API int rtrs_server_close(rtrs_server *server, unsigned drain_ms);
/* A listener's address, "tcp:127.0.0.1:1234" with the real port. ENOENT: there is no such
 * listener. */
RTRS_API int rtrs_server_address(rtrs_server *server, unsigned index, char *text, size_t size);
/* The port of the first listener. 0: `server` is NULL. */
RTRS_API unsigned rtrs_server_port(rtrs_server *server);

/* Ends a request: with an errno (1 to 511), or with 0 and an answer, which is copied before the
 * function returns. The request is gone then. An answer longer than the room ends it with EMSGSIZE.
 * Threads: any. */
RTRS_API void rtrs_finish(rtrs_request *request, int error, const void *answer, size_t length);
/* The same with an answer that is not copied: `release` is called once, from any thread, when the
 * library does not need it any more. */
RTRS_API void rtrs_finish_with(rtrs_request *request, const void *answer, size_t length,
                               void (*release)(void *context), void *context);
/* Takes the data of a request that came in several messages (more than max_io_size, or data that
 * wait for an answer), for rtrs_free() or free(). NULL: they came in one message, or were taken. */
RTRS_API void *rtrs_take_data(rtrs_request *request);

/* The name under which the client announced itself, and its address. */
RTRS_API const char *rtrs_session_name(rtrs_session *session);
RTRS_API const char *rtrs_session_peer(rtrs_session *session);
/* The name that the client has proven with its key or its certificate; "" = none. */
RTRS_API const char *rtrs_session_user(rtrs_session *session);
/* A pointer of the handler. Threads: set on the session's event loop. */
RTRS_API void rtrs_session_set_context(rtrs_session *session, void *context);
RTRS_API void *rtrs_session_context(rtrs_session *session);

#ifdef __cplusplus
}
#endif

#endif
