// SPDX-License-Identifier: BSD-3-Clause
// Options of the parts of a server, made of ServerOptions and of what the machine tells.
#pragma once

#include <cstdint>
#include <string_view>
#include <tl/expected.hpp>

#include "rdma/core/admission.hpp"
#include "rdma/core/server/session.hpp"
#include "rdma/server.hpp"
#include "rdma/transport/acceptor.hpp"

namespace rtrs {

/// With the numbers that depend on the machine.
ServerOptions with_defaults(ServerOptions options);
/// Errors: EINVAL, with the way out.
tl::expected<void, Failure> check(const ServerOptions& options);

ServerSessionOptions session_options(const ServerOptions& options);
AcceptorOptions acceptor_options(const ServerOptions& options);
AdmissionLimits admission_limits(const ServerOptions& options, MemoryAccount* account = nullptr);

/// Names a life of the machine: when it changes, the contents of the page cache are lost.
///
/// Source: random(4), /proc/sys/kernel/random/boot_id; docs/protocol.md, RTRS extension.
std::uint64_t volatile_epoch_of(std::string_view boot_id);

/// The epoch of this machine, of which its user knows so many losses by other causes. A machine
/// that does not tell its lives gets another one each time, which is safe.
std::uint64_t volatile_epoch_of_this_machine(std::uint64_t losses = 0);

}  // namespace rtrs
