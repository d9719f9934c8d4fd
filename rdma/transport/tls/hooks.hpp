// SPDX-License-Identifier: BSD-3-Clause
// Functions that GnuTLS calls of a session; for session's own sources only.
#pragma once

#include <gnutls/gnutls.h>

#include <array>
#include <vector>

#include "rdma/transport/tls/session.hpp"

namespace rtrs::tls {

struct Session::Hooks {
  static ssize_t pull(gnutls_transport_ptr_t self, void* to, std::size_t size);
  static int wait(gnutls_transport_ptr_t self, unsigned milliseconds);
  static ssize_t push(gnutls_transport_ptr_t self, const giovec_t* from, int count);
};

struct Session::Verification {
  std::array<gnutls_typed_vdata_st, 2> data{};
};

}  // namespace rtrs::tls
