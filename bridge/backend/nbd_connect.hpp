// SPDX-License-Identifier: BSD-3-Clause
// libnbd's handle, and how to get a connected one.
#pragma once

#include <libnbd.h>

#include <chrono>
#include <memory>
#include <string>
#include <tl/expected.hpp>

#include "rdma/failure.hpp"

namespace rnbd {

using rtrs::Failure;

struct CloseNbdHandle {
  void operator()(nbd_handle* handle) const { nbd_close(handle); }
};
using NbdHandle = std::unique_ptr<nbd_handle, CloseNbdHandle>;

/// Connects and negotiates until the export can be used. Blocks for up to `patience`, and longer
/// while a name is looked up.
///
/// Errors: a sentence without the URI; ETIMEDOUT, ...
tl::expected<NbdHandle, Failure> connect_nbd(const std::string& uri, std::chrono::seconds patience);

/// True if nothing from the server is unread, not even the end of the connection.
bool is_silent(nbd_handle* h);

}  // namespace rnbd
