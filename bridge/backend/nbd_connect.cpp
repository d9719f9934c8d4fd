// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/backend/nbd_connect.hpp"

#include <poll.h>

#include <cerrno>
#include <chrono>

namespace rnbd {

namespace {

using std::chrono::steady_clock;

Failure last_failure() {
  const char* const text = nbd_get_error();
  const int error = nbd_get_errno();
  return {error != 0 ? error : EIO, text != nullptr ? text : "unknown error of libnbd"};
}

}  // namespace

tl::expected<NbdHandle, Failure> connect_nbd(const std::string& uri,
                                             std::chrono::seconds patience) {
  NbdHandle handle{nbd_create()};
  if (handle == nullptr) return tl::unexpected(last_failure());
  nbd_handle* const h = handle.get();
  nbd_set_full_info(h, true);
  nbd_set_pread_initialize(h, false);
  nbd_set_uri_allow_local_file(h, true);  // keys for TLS; the URI is the administrator's
  nbd_add_meta_context(h, LIBNBD_CONTEXT_BASE_ALLOCATION);
  const auto deadline = steady_clock::now() + patience;
  if (nbd_aio_connect_uri(h, uri.c_str()) != 0) return tl::unexpected(last_failure());
  while (nbd_aio_is_connecting(h) == 1) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - steady_clock::now()).count();
    const int ready = left > 0 ? nbd_poll(h, static_cast<int>(left)) : 0;
    if (ready < 0) return tl::unexpected(last_failure());
    if (ready == 0) {
      return tl::unexpected(Failure{ETIMEDOUT, "the server did not answer within " +
                                                   std::to_string(patience.count()) + " seconds"});
    }
  }
  if (nbd_aio_is_ready(h) != 1) return tl::unexpected(last_failure());
  return handle;
}

bool is_silent(nbd_handle* h) {
  pollfd descriptor{nbd_aio_get_fd(h), POLLIN | POLLRDHUP, 0};
  return poll(&descriptor, 1, 0) == 0;
}

}  // namespace rnbd
