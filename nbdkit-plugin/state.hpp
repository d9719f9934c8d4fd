// SPDX-License-Identifier: BSD-3-Clause
// State that all callbacks of the plugin share.
#pragma once

#include <cerrno>
#include <exception>
#include <memory>
#include <new>

#include "bridge/client/commands.hpp"
#include "bridge/client/config.hpp"
#include "bridge/client/connections.hpp"
#include "bridge/control/control_socket.hpp"
#include "bridge/control/late_opening.hpp"
#include "rdma/complaint_log.hpp"

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#define THREAD_MODEL NBDKIT_THREAD_MODEL_PARALLEL

// -D rnbd.verbose=1 and -D rnbd.io=1: nbdkit finds the flags by these names.
extern "C" {
extern int rnbd_debug_verbose;  ///< what the session does
extern int rnbd_debug_io;       ///< every request and how it ended
}

namespace rnbd::plugin {

void log_line(rtrs::LogLevel level, const std::string& line);

/// All that lives from .load to .unload.
struct State {
  /// Of what NBD clients ask for in vain, which they may do without end.
  rtrs::ComplaintLog request_complaints{&log_line};
  ConfigReader reader;
  ClientConfig config;
  std::unique_ptr<Connections> connections;
  std::unique_ptr<ControlCommands> commands;
  std::unique_ptr<ControlSocket> control;
  std::unique_ptr<LateOpening> late_control;  ///< opens `control`
};
extern State* state;

/// Says why something failed, and lets nbdkit answer with its errno.
void report(const Failure& failure);

/// Runs a callback's body; no exception may reach nbdkit, which is C.
template <class Result, class Body>
Result guarded(Result on_error, Body body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    nbdkit_error("out of memory");
    nbdkit_set_error(ENOMEM);
  } catch (const std::exception& error) {
    nbdkit_error("unexpected: %s", error.what());
    nbdkit_set_error(EIO);
  } catch (...) {
    nbdkit_error("unexpected exception");
    nbdkit_set_error(EIO);
  }
  return on_error;
}

/// True when nbdkit shuts down or this thread's client has gone. It looks without sleeping, and
/// says itself why it wants to leave.
inline bool should_leave(void* /*context*/) { return nbdkit_nanosleep(0, 0) != 0; }

inline constexpr Interrupt kLeave{&should_leave, nullptr};

/// The callbacks of an open device, in an otherwise empty table.
nbdkit_plugin device_callbacks();

}  // namespace rnbd::plugin
