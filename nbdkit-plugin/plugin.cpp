// The plugin as nbdkit sees it: thin callbacks around rnbd::ClientConfig, Connections and
// RemoteDevice.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <thread>

#include "bridge/client/commands.hpp"
#include "bridge/client/config.hpp"
#include "bridge/client/connections.hpp"
#include "bridge/client/remote_device.hpp"
#include "bridge/control/control_socket.hpp"
#include "bridge/nbd/block_sizes.hpp"
#include "bridge/nbd/errors.hpp"
#include "rdma/complaint_log.hpp"

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#define THREAD_MODEL NBDKIT_THREAD_MODEL_PARALLEL

// -D rnbd.verbose=1 and -D rnbd.io=1: nbdkit finds the flags by these names.
extern "C" {
NBDKIT_DLL_PUBLIC int rnbd_debug_verbose = 0;  ///< what the session does
NBDKIT_DLL_PUBLIC int rnbd_debug_io = 0;       ///< every request and how it ended
}

namespace {

using rnbd::Failure;
using rnbd::Interrupt;
using rnbd::RemoteDevice;

void log_line(rtrs::LogLevel level, const std::string& line);

/// All that lives from .load to .unload.
struct State {
  /// Of what NBD clients ask for in vain, which they may do without end.
  rtrs::ComplaintLog request_complaints{&log_line};
  rnbd::ConfigReader reader;
  rnbd::ClientConfig config;
  std::unique_ptr<rnbd::Connections> connections;
  std::unique_ptr<rnbd::ControlCommands> commands;
  std::unique_ptr<rnbd::ControlSocket> control;
};
State* state = nullptr;

// ---- Errors -------------------------------------------------------------------------------------

void report(const Failure& failure) {
  state->request_complaints.say(rtrs::LogLevel::error, failure.text,
                                std::chrono::steady_clock::now());
  nbdkit_set_error(rnbd::errno_for_nbd(failure.error));
}

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
bool should_leave(void* /*context*/) { return nbdkit_nanosleep(0, 0) != 0; }

constexpr Interrupt kLeave{&should_leave, nullptr};

void log_line(rtrs::LogLevel level, const std::string& line) {
  if (level == rtrs::LogLevel::error || level == rtrs::LogLevel::warning) {
    nbdkit_error("%s", line.c_str());
  } else if (level == rtrs::LogLevel::info || rnbd_debug_verbose != 0) {
    nbdkit_debug("%s", line.c_str());
  }
}

// ---- Life of the plugin -------------------------------------------------------------------------

void on_load() {
  guarded(0, [] {
    state = new State;
    return 0;
  });
}

void on_unload() {
  delete state;
  state = nullptr;
}

void on_dump_plugin() {
  std::printf(
      "rnbd_tcp=1\n"
      "rnbd_rdma=1\n"
      "rnbd_protocol=%d\n"
      "rtrs_protocol=%d.%d\n"
      "rnbd_extension=%d\n"
      "rnbd_max_paths=%u\n"
      "rnbd_digest=crc32c\n",
      rnbd::wire::kProtocolMajor, rtrs::wire::kVersion >> 8, rtrs::wire::kVersion & 0xFF,
      rtrs::wire::kExtensionVersion, rnbd::kMaxPaths);
}

int on_config(const char* key, const char* value) {
  return guarded(-1, [&] {
    auto done = state->reader.set(key, value);
    if (!done) nbdkit_error("%s", done.error().c_str());
    return done ? 0 : -1;
  });
}

int on_config_complete() {
  return guarded(-1, [] {
    auto config = state->reader.complete();
    if (!config) {
      nbdkit_error("%s", config.error().c_str());
      return -1;
    }
    state->config = *std::move(config);
    state->connections = std::make_unique<rnbd::Connections>(state->config, &log_line);
    return 0;
  });
}

/// connect=now: the last moment at which the user sees an error. Everything is gone again before
/// nbdkit forks.
int on_get_ready() {
  return guarded(-1, [] {
    if (!state->config.connect_now) return 0;
    auto usable = state->connections->probe();
    if (!usable) nbdkit_error("%s", usable.error().text.c_str());
    return usable ? 0 : -1;
  });
}

/// Threads begin here, and with control= the first one.
int on_after_fork() {
  return guarded(-1, [] {
    if (state->config.control.empty()) return 0;
    state->commands = std::make_unique<rnbd::ControlCommands>(
        rnbd::client_commands(state->config, *state->connections));
    auto control = rnbd::ControlSocket::open(
        state->config.control,
        [&commands = *state->commands](std::string_view line) { return commands.answer(line); });
    if (!control) {
      nbdkit_error("%s", control.error().c_str());
      return -1;
    }
    state->control = *std::move(control);
    return 0;
  });
}

void on_cleanup() {
  guarded(0, [] {
    if (state == nullptr || state->connections == nullptr) return 0;
    state->control.reset();
    state->connections->leave();
    state->connections.reset();
    return 0;
  });
}

// ---- Exports ------------------------------------------------------------------------------------

int on_list_exports(int /*readonly*/, int /*is_tls*/, nbdkit_exports* exports) {
  return guarded(-1, [&] {
    if (!state->config.dynamic_export) {
      return nbdkit_add_export(exports, state->config.device.c_str(), nullptr);
    }
    auto names = state->connections->exports(kLeave);
    if (!names) {
      if (names.error().error == EOPNOTSUPP) return nbdkit_use_default_export(exports);
      report(names.error());
      return -1;
    }
    for (const auto& [name, description] : *names) {
      const char* about = description.empty() ? nullptr : description.c_str();
      if (nbdkit_add_export(exports, name.c_str(), about) != 0) return -1;
    }
    return 0;
  });
}

const char* on_default_export(int /*readonly*/, int /*is_tls*/) {
  return guarded<const char*>(nullptr, []() -> const char* {
    // Without a default, opening the export "" will say why.
    auto device = state->connections->default_device(kLeave);
    return device ? nbdkit_strdup_intern(device->c_str()) : "";
  });
}

// ---- rnbd::Connections
// --------------------------------------------------------------------------------

RemoteDevice& device_of(void* handle) { return *static_cast<RemoteDevice*>(handle); }

void* on_open(int readonly) {
  return guarded<void*>(nullptr, [&]() -> void* {
    const char* name = nbdkit_export_name();
    if (name == nullptr) return nullptr;
    auto device = state->connections->open(name, readonly != 0, kLeave);
    if (device) return *device;
    report(device.error());
    return nullptr;
  });
}

void on_close(void* handle) {
  guarded(0, [&] {
    state->connections->close(static_cast<RemoteDevice*>(handle));
    return 0;
  });
}

const char* on_export_description(void* handle) {
  return guarded<const char*>(nullptr, [&] {
    RemoteDevice& device = device_of(handle);
    return nbdkit_printf_intern("%s at %s (%s)", device.name().c_str(),
                                state->config.server().c_str(), device.read_only() ? "ro" : "rw");
  });
}

// ---- What the device is and can -----------------------------------------------------------------

const rnbd::DeviceGeometry& geometry_of(void* handle) { return device_of(handle).geometry(); }

int64_t on_get_size(void* handle) { return static_cast<int64_t>(geometry_of(handle).size); }

int on_block_size(void* handle, uint32_t* minimum, uint32_t* preferred, uint32_t* maximum) {
  const rnbd::nbd::BlockSizes sizes = rnbd::nbd::block_sizes(geometry_of(handle));
  *minimum = sizes.minimum;
  *preferred = sizes.preferred;
  *maximum = sizes.maximum;
  return 0;
}

int on_can_write(void* handle) { return device_of(handle).read_only() ? 0 : 1; }
int on_can_flush(void* /*handle*/) { return 1; }
int on_is_rotational(void* handle) { return geometry_of(handle).rotational ? 1 : 0; }
int on_can_zero(void* /*handle*/) { return 1; }  // by writing zeroes, if there is nothing better
int on_can_fast_zero(void* handle) { return geometry_of(handle).fast_zero ? 1 : 0; }
int on_can_extents(void* handle) { return geometry_of(handle).extents ? 1 : 0; }
int on_can_trim(void* handle) { return geometry_of(handle).max_discard != 0 ? 1 : 0; }

int on_can_fua(void* handle) {
  return geometry_of(handle).native_fua ? NBDKIT_FUA_NATIVE : NBDKIT_FUA_EMULATE;
}

int on_can_cache(void* handle) {
  return geometry_of(handle).cache ? NBDKIT_CACHE_NATIVE : NBDKIT_CACHE_NONE;
}

int on_can_multi_conn(void* handle) {
  // In migration mode another host may write as well.
  const bool alone = state->config.access != rnbd::wire::AccessMode::migration;
  return alone && geometry_of(handle).flush_covers_all ? 1 : 0;
}

// ---- I/O ----------------------------------------------------------------------------------------

/// nbdkit 1.32 aborts when the replies of two threads to a client that has gone fail at the same
/// time; after the first failure it sends no more. So those that gave up go back one by one.
void leave_in_single_file() {
  constexpr std::chrono::milliseconds kTimeToFail{5};
  static std::mutex door;
  const std::lock_guard lock{door};
  std::this_thread::sleep_for(kTimeToFail);
}

/// Runs one request and reports its error.
template <class Body>
int request(const char* what, uint64_t offset, uint64_t count, Body body) noexcept {
  return guarded(-1, [&] {
    const int error = body();
    if (rnbd_debug_io != 0) {
      nbdkit_debug("%s: offset=%llu count=%llu: %s", what, static_cast<unsigned long long>(offset),
                   static_cast<unsigned long long>(count),
                   error == 0 ? "done" : rnbd::describe_error(error));
    }
    if (error == 0) return 0;
    if (error == EINTR) leave_in_single_file();
    if (error == EINTR || error == EOPNOTSUPP) {  // nbdkit has said why; an answer, not a failure
      nbdkit_set_error(rnbd::errno_for_nbd(error));
    } else {
      report({error, std::string{what} + " of " + std::to_string(count) + " bytes at " +
                         std::to_string(offset) + ": " + rnbd::describe_error(error)});
    }
    return -1;
  });
}

int on_pread(void* handle, void* buffer, uint32_t count, uint64_t offset, uint32_t /*flags*/) {
  return request("read", offset, count, [&] {
    return device_of(handle).read(offset, {static_cast<std::byte*>(buffer), count}, kLeave);
  });
}

int on_pwrite(void* handle, const void* buffer, uint32_t count, uint64_t offset, uint32_t flags) {
  return request("write", offset, count, [&] {
    return device_of(handle).write(offset, {static_cast<const std::byte*>(buffer), count},
                                   (flags & NBDKIT_FLAG_FUA) != 0, kLeave);
  });
}

int on_flush(void* handle, uint32_t /*flags*/) {
  return request("flush", 0, 0, [&] { return device_of(handle).flush(kLeave); });
}

int on_trim(void* handle, uint32_t count, uint64_t offset, uint32_t flags) {
  return request("trim", offset, count, [&] {
    return device_of(handle).discard(offset, count, (flags & NBDKIT_FLAG_FUA) != 0, kLeave);
  });
}

int on_zero(void* handle, uint32_t count, uint64_t offset, uint32_t flags) {
  return request("zero", offset, count, [&] {
    const rnbd::ZeroOptions options{.fua = (flags & NBDKIT_FLAG_FUA) != 0,
                                    .may_unmap = (flags & NBDKIT_FLAG_MAY_TRIM) != 0,
                                    .fast = (flags & NBDKIT_FLAG_FAST_ZERO) != 0};
    return device_of(handle).write_zeroes(offset, count, options, kLeave);
  });
}

int on_extents(void* handle, uint32_t count, uint64_t offset, uint32_t flags,
               nbdkit_extents* extents) {
  constexpr std::size_t kMany = 256;
  return request("extents", offset, count, [&] {
    std::vector<rnbd::wire::Extent> runs;
    const std::size_t most = (flags & NBDKIT_FLAG_REQ_ONE) != 0 ? 1 : kMany;
    if (int error = device_of(handle).extents(offset, count, most, runs, kLeave)) return error;
    uint64_t at = offset;
    for (const auto& run : runs) {
      uint32_t type = 0;
      if ((run.flags & rnbd::wire::kExtentHole) != 0) type |= NBDKIT_EXTENT_HOLE;
      if ((run.flags & rnbd::wire::kExtentZero) != 0) type |= NBDKIT_EXTENT_ZERO;
      if (nbdkit_add_extent(extents, at, run.length, type) != 0) return errno != 0 ? errno : EIO;
      at += run.length;
    }
    return 0;
  });
}

int on_cache(void* handle, uint32_t count, uint64_t offset, uint32_t /*flags*/) {
  return request("cache", offset, count,
                 [&] { return device_of(handle).cache(offset, count, kLeave); });
}

const std::string help = rnbd::config_help();

nbdkit_plugin plugin = {
    .name = "rnbd",
    .longname = "nbdkit RNBD plugin",
    .version = RNBDKIT_VERSION,
    .description = "Access block devices of an RNBD server over RTRS",
    .load = on_load,
    .unload = on_unload,
    .config = on_config,
    .config_complete = on_config_complete,
    .config_help = help.c_str(),
    .open = on_open,
    .close = on_close,
    .get_size = on_get_size,
    .can_write = on_can_write,
    .can_flush = on_can_flush,
    .is_rotational = on_is_rotational,
    .can_trim = on_can_trim,
    .errno_is_preserved = 1,
    .dump_plugin = on_dump_plugin,
    .can_zero = on_can_zero,
    .can_fua = on_can_fua,
    .pread = on_pread,
    .pwrite = on_pwrite,
    .flush = on_flush,
    .trim = on_trim,
    .zero = on_zero,
    .magic_config_key = "uri",
    .can_multi_conn = on_can_multi_conn,
    .can_extents = on_can_extents,
    .extents = on_extents,
    .can_cache = on_can_cache,
    .cache = on_cache,
    .can_fast_zero = on_can_fast_zero,
    .get_ready = on_get_ready,
    .after_fork = on_after_fork,
    .list_exports = on_list_exports,
    .default_export = on_default_export,
    .export_description = on_export_description,
    .cleanup = on_cleanup,
    .block_size = on_block_size,
};

}  // namespace

NBDKIT_REGISTER_PLUGIN(plugin)
