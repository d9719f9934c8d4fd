// SPDX-License-Identifier: BSD-3-Clause
// The ABI of librtrs 0 on machines of 64 bits. Programs compiled against an older header must go on
// working: fields are added at the end, functions get new names, and nothing of this changes.
#include <cstddef>
#include <type_traits>

#include "rdma/library/include/rtrs.h"

namespace abi_test {

namespace {

#define AT(type, field, offset) static_assert(offsetof(type, field) == (offset))

AT(rtrs_error, code, 0);
AT(rtrs_error, text, 4);
static_assert(sizeof(rtrs_error) == 512);

AT(rtrs_id, client, 0);
AT(rtrs_id, number, 16);
static_assert(sizeof(rtrs_id) == 24);

AT(rtrs_client_options, size, 0);
AT(rtrs_client_options, session_name, 8);
AT(rtrs_client_options, policy, 16);
AT(rtrs_client_options, lanes, 24);
AT(rtrs_client_options, connect_timeout_ms, 28);
AT(rtrs_client_options, no_path_timeout_ms, 32);
AT(rtrs_client_options, call_timeout_ms, 36);
AT(rtrs_client_options, heartbeat_interval_ms, 40);
AT(rtrs_client_options, heartbeat_misses, 44);
AT(rtrs_client_options, spin_us, 48);
AT(rtrs_client_options, no_digests, 52);
AT(rtrs_client_options, log, 56);
AT(rtrs_client_options, log_context, 64);
AT(rtrs_client_options, tls, 72);
AT(rtrs_client_options, tls_no_verify_peer, 76);
AT(rtrs_client_options, tls_psk, 80);
AT(rtrs_client_options, tls_certificates, 88);
AT(rtrs_client_options, tls_username, 96);
AT(rtrs_client_options, auth_psk, 104);
AT(rtrs_client_options, auth_username, 112);
static_assert(sizeof(rtrs_client_options) >= 120);

AT(rtrs_operation, size, 0);
AT(rtrs_operation, flags, 8);
AT(rtrs_operation, message, 16);
AT(rtrs_operation, message_length, 24);
AT(rtrs_operation, out, 32);
AT(rtrs_operation, out_count, 40);
AT(rtrs_operation, in, 48);
AT(rtrs_operation, in_count, 56);
AT(rtrs_operation, done, 64);
AT(rtrs_operation, context, 72);
AT(rtrs_operation, error, 80);
AT(rtrs_operation, answer_length, 88);
AT(rtrs_operation, private_data, 96);
AT(rtrs_operation, most, 104);
AT(rtrs_operation, answer, 112);
static_assert(sizeof(rtrs_operation) >= 120);

AT(rtrs_limits, size, 0);
AT(rtrs_limits, queue_depth, 8);
AT(rtrs_limits, max_io_size, 12);
static_assert(sizeof(rtrs_limits) >= 16);

AT(rtrs_path, size, 0);
AT(rtrs_path, address, 8);
AT(rtrs_path, connected, 264);
AT(rtrs_path, in_use, 268);
AT(rtrs_path, requests, 272);
AT(rtrs_path, in_flight, 280);
AT(rtrs_path, latency_ns, 288);
static_assert(sizeof(rtrs_path) >= 296);

AT(rtrs_incoming, size, 0);
AT(rtrs_incoming, request, 8);
AT(rtrs_incoming, session, 16);
AT(rtrs_incoming, message, 24);
AT(rtrs_incoming, message_length, 32);
AT(rtrs_incoming, data, 40);
AT(rtrs_incoming, data_length, 48);
AT(rtrs_incoming, room, 56);
AT(rtrs_incoming, answer, 64);
AT(rtrs_incoming, flags, 72);
AT(rtrs_incoming, id, 80);
static_assert(sizeof(rtrs_incoming) >= 104);

AT(rtrs_server_ops, size, 0);
AT(rtrs_server_ops, request, 8);
AT(rtrs_server_ops, session_up, 16);
AT(rtrs_server_ops, session_down, 24);
AT(rtrs_server_ops, paths_changed, 32);
static_assert(sizeof(rtrs_server_ops) >= 40);

AT(rtrs_server_options, size, 0);
AT(rtrs_server_options, loops, 8);
AT(rtrs_server_options, workers, 12);
AT(rtrs_server_options, queue_depth, 16);
AT(rtrs_server_options, max_io_size, 20);
AT(rtrs_server_options, max_request_size, 24);
AT(rtrs_server_options, request_memory, 32);
AT(rtrs_server_options, memory_limit, 40);
AT(rtrs_server_options, max_sessions, 48);
AT(rtrs_server_options, session_linger_ms, 52);
AT(rtrs_server_options, heartbeat_interval_ms, 56);
AT(rtrs_server_options, heartbeat_misses, 60);
AT(rtrs_server_options, no_digests, 64);
AT(rtrs_server_options, log, 72);
AT(rtrs_server_options, log_context, 80);
AT(rtrs_server_options, tls, 88);
AT(rtrs_server_options, tls_no_verify_peer, 92);
AT(rtrs_server_options, tls_psk, 96);
AT(rtrs_server_options, tls_certificates, 104);
AT(rtrs_server_options, auth_psk, 112);
static_assert(sizeof(rtrs_server_options) >= 120);

#define IS(name, ...) static_assert(std::is_same_v<decltype(name), __VA_ARGS__>)

IS(rtrs_version, const char*());
IS(rtrs_strerror, const char*(int));
IS(rtrs_connect, rtrs_client*(const char*, const rtrs_client_options*, rtrs_error*));
IS(rtrs_disconnect, void(rtrs_client*));
IS(rtrs_call,
   int(rtrs_client*, const void*, size_t, const iovec*, int, const iovec*, int, size_t*, unsigned));
IS(rtrs_submit, int(rtrs_client*, rtrs_operation*));
IS(rtrs_cancel, int(rtrs_client*, rtrs_operation*));
IS(rtrs_fd, int(rtrs_client*));
IS(rtrs_next, int(rtrs_client*, rtrs_operation**, int));
IS(rtrs_register_memory, int(rtrs_client*, void*, size_t, rtrs_error*));
IS(rtrs_unregister_memory, int(rtrs_client*, void*, size_t));
IS(rtrs_client_limits, void(rtrs_client*, rtrs_limits*));
IS(rtrs_client_alive, int(rtrs_client*));
IS(rtrs_client_paths, int(rtrs_client*, rtrs_path*, int));
IS(rtrs_add_path, int(rtrs_client*, const char*, rtrs_error*));
IS(rtrs_remove_path, int(rtrs_client*, const char*, rtrs_error*));
IS(rtrs_set_policy, int(rtrs_client*, const char*));
IS(rtrs_listen, rtrs_server*(const char*, const rtrs_server_ops*, void*, const rtrs_server_options*,
                             rtrs_error*));
IS(rtrs_server_close, int(rtrs_server*, unsigned));
IS(rtrs_server_address, int(rtrs_server*, unsigned, char*, size_t));
IS(rtrs_server_port, unsigned(rtrs_server*));
IS(rtrs_finish, void(rtrs_request*, int, const void*, size_t));
IS(rtrs_finish_with, void(rtrs_request*, const void*, size_t, void (*)(void*), void*));
IS(rtrs_take_data, void*(rtrs_request*));
IS(rtrs_session_name, const char*(rtrs_session*));
IS(rtrs_session_peer, const char*(rtrs_session*));
IS(rtrs_session_user, const char*(rtrs_session*));
IS(rtrs_session_set_context, void(rtrs_session*, void*));
IS(rtrs_session_context, void*(rtrs_session*));

static_assert(RTRS_MAX_MESSAGE == 240 && RTRS_UNKNOWN_OUTCOME == 131);
static_assert(RTRS_REPEATABLE == 1 && RTRS_RESEND == 2 && RTRS_NOWAIT == 4 && RTRS_CONTROL == 8);
static_assert(RTRS_TLS_OFF == 0 && RTRS_TLS_ON == 1 && RTRS_TLS_REQUIRE == 2);
static_assert(RTRS_MAYBE_DONE == 16 && RTRS_DEBUG == 0 && RTRS_ERROR == 3);

}  // namespace

}  // namespace abi_test
