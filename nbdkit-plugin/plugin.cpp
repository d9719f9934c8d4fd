// SPDX-License-Identifier: BSD-3-Clause
// The plugin as nbdkit sees it: its configuration, its life, and the exports that it has.
#include <chrono>
#include <cstdio>
#include <string>

#include "bridge/control/unix_socket.hpp"
#include "bridge/protocol/nbd_errors.hpp"
#include "nbdkit-plugin/listening.hpp"
#include "nbdkit-plugin/state.hpp"

extern "C" {
NBDKIT_DLL_PUBLIC int rnbd_debug_verbose = 0;
NBDKIT_DLL_PUBLIC int rnbd_debug_io = 0;
}

namespace rnbd::plugin {

State* state = nullptr;

void report(const Failure& failure) {
  state->request_complaints.say(rtrs::LogLevel::error, failure.text,
                                std::chrono::steady_clock::now());
  nbdkit_set_error(errno_for_nbd(failure.error));
}

void log_line(rtrs::LogLevel level, const std::string& line) {
  if (level == rtrs::LogLevel::error || level == rtrs::LogLevel::warning) {
    nbdkit_error("%s", line.c_str());
  } else if (level == rtrs::LogLevel::info || rnbd_debug_verbose != 0) {
    nbdkit_debug("%s", line.c_str());
  }
}

namespace {

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
      wire::kProtocolMajor, rtrs::wire::kVersion >> 8, rtrs::wire::kVersion & 0xFF,
      rtrs::wire::kExtensionVersion, kMaxPaths);
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
    state->config.how_to_list = "nbdkit -r -U - rnbd " + state->config.server_and_keys() +
                                " dynamic-export=true --run 'nbdinfo --list \"$uri\"'";
    state->connections = std::make_unique<Connections>(state->config, &log_line);
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

/// Whether nbdkit demands certificates (--tls=require) it does not tell.
void warn_of_strangers() {
  const std::string addresses =
      state->config.access == wire::AccessMode::read_only ? "" : open_to_strangers();
  if (addresses.empty()) return;
  log_line(rtrs::LogLevel::warning,
           "nbdkit listens on " + addresses +
               ": without --tls=require whoever reaches it may write to the device; give nbdkit "
               "-U SOCKET or -i 127.0.0.1");
}

/// Threads begin here, and with control= the first one.
int on_after_fork() {
  return guarded(-1, [] {
    warn_of_strangers();
    if (state->config.control.empty()) return 0;
    if (const std::string wrong = complaint_about_socket_place(state->config.control);
        !wrong.empty()) {
      nbdkit_error("%s", wrong.c_str());
      return -1;
    }
    state->commands =
        std::make_unique<ControlCommands>(client_commands(state->config, *state->connections));
    const auto open = []() -> tl::expected<void, std::string> {
      auto control = ControlSocket::open(
          state->config.control,
          [&commands = *state->commands](std::string_view line, ControlCaller caller) {
            return commands.answer(line, caller);
          });
      if (!control) return tl::unexpected(control.error());
      state->control = *std::move(control);
      return {};
    };
    state->late_control = std::make_unique<LateOpening>(open, log_line);
    state->late_control->start();
    return 0;
  });
}

void on_cleanup() {
  guarded(0, [] {
    if (state == nullptr || state->connections == nullptr) return 0;
    state->late_control.reset();
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
    auto names = state->connections->present(kLeave);
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

const std::string help = config_help();

nbdkit_plugin make_table() {
  nbdkit_plugin table = device_callbacks();
  table.name = "rnbd";
  table.longname = "nbdkit RNBD plugin";
  table.version = RNBDKIT_VERSION;
  table.description = "Access block devices of an RNBD server over RTRS";
  table.load = on_load;
  table.unload = on_unload;
  table.dump_plugin = on_dump_plugin;
  table.config = on_config;
  table.config_complete = on_config_complete;
  table.config_help = help.c_str();
  table.magic_config_key = "uri";
  table.get_ready = on_get_ready;
  table.after_fork = on_after_fork;
  table.cleanup = on_cleanup;
  table.list_exports = on_list_exports;
  table.default_export = on_default_export;
  return table;
}

nbdkit_plugin plugin = make_table();

}  // namespace
}  // namespace rnbd::plugin

using rnbd::plugin::plugin;
NBDKIT_REGISTER_PLUGIN(plugin)
