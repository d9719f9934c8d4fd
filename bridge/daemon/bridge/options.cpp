// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/daemon/bridge/options.hpp"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <cstring>
#include <map>
#include <string_view>
#include <utility>

#include "bridge/client/key_file.hpp"
#include "bridge/control/unix_socket.hpp"
#include "bridge/daemon/bridge/annex.hpp"
#include "bridge/kernel/identity.hpp"
#include "rdma/duration.hpp"

namespace rnbd {
namespace {

constexpr const char* kDescription =
    "rnbd-bridge - an NBD server in front of a block device of an RNBD server\n"
    "\n"
    "URI is rnbd+tcp://HOST[:PORT][/DEVICE] (TCP), rnbds+tcp://[USER@]HOST[:PORT][/DEVICE] (TCP "
    "with\nTLS) or rnbd://HOST[:PORT][/DEVICE] (RDMA).\n"
    "Without DEVICE every export of the server is there under its own name.\n"
    "Without --listen it listens on 127.0.0.1, port 10809.\n";

constexpr const char* kExamples = R"(Examples:
  A device of another machine as /dev/nbd0:
    rnbd-bridge --listen unix:/run/rnbd/disk0.sock rnbd+tcp://storage/disk0 &
    nbd-client -unix /run/rnbd/disk0.sock /dev/nbd0

  The same without another program; it survives this one's death and its next start:
    rnbd-bridge --kernel nbd --map-name disk0 rnbd+tcp://storage/disk0

  Over RDMA, with a second path, for qemu:
    rnbd-bridge --listen unix:/run/rnbd/disk0.sock --path 10.0.1.1 \
                rnbd://10.0.0.1/disk0 &
    qemu-system-x86_64 -drive file=nbd+unix:///?socket=/run/rnbd/disk0.sock ...

  Everything that a server exports:
    rnbd-bridge --access ro rnbd+tcp://storage &
    nbdinfo --list nbd://localhost

rnbd-bridge(8) explains everything.)";

/// The wait for a server to return. It is long, because file systems take an error for the end of
/// the disk.
constexpr const char* kKernelPatience = "300s";

const std::map<std::string, rtrs::LogLevel> kLogLevels{{"error", rtrs::LogLevel::error},
                                                       {"warning", rtrs::LogLevel::warning},
                                                       {"info", rtrs::LogLevel::info},
                                                       {"debug", rtrs::LogLevel::debug}};

struct Arguments {
  std::string uri;
  std::vector<std::string> listen;
  std::string log_level = "info";
  std::vector<std::pair<const ClientOption*, std::string>> keys;
  std::string kernel;
  std::string map_name;
  std::string dead_timeout;
  std::string kernel_retry;
  std::vector<std::string> disk_files;
};

/// The plugin's keys that have no place here: the URI is an argument, and without a device in it
/// the export is the client's choice.
bool is_option(const ClientOption& key) {
  const std::string_view name{key.key};
  return name != "uri" && name != "server" && name != "transport" && name != "dynamic-export";
}

/// TLS towards the server has names of its own: --tls and its like are about the NBD clients, as
/// they are of nbdkit.
std::string option_of(const ClientOption& key) {
  const std::string name{key.key};
  return "--" + (name.starts_with("tls") ? "upstream-" + name : name);
}

/// As nbdkit calls them: they are about the NBD clients.
void add_tls_options(CLI::App& app, BridgeOptions& options) {
  static const std::map<std::string, rtrs::TlsMode> kModes{
      {"off", rtrs::TlsMode::off}, {"on", rtrs::TlsMode::on}, {"require", rtrs::TlsMode::require}};
  const auto file = [&app](const char* name, std::string& to, const char* value, const char* help) {
    app.add_option_function<std::string>(
           name,
           [&to, name](const std::string& text) {
             auto where = parse_key_file(text);
             if (!where) throw CLI::ValidationError(name, where.error());
             to = *std::move(where);
           },
           help)
        ->type_name(value);
  };
  app.add_option_function<std::string>(
         "--tls",
         [&options](const std::string& text) {
           const auto mode = kModes.find(text);
           if (mode == kModes.end()) {
             throw CLI::ValidationError("--tls", "'" + text + "' is not off, on or require");
           }
           options.tls = mode->second;
         },
         "Encrypt NBD connections: off, on (clients choose) or require. The default is off, and "
         "require as soon as keys are named. The way to the server is encrypted by rnbds+tcp://.")
      ->type_name("off|on|require");
  options.tls_keys.tls12 = true;
  file("--tls-psk", options.tls_keys.psk, "FILE",
       "File of shared keys of NBD clients, a line NAME:HEX each; or credential:NAME of systemd.");
  file("--tls-certificates", options.tls_keys.certificates, "DIRECTORY",
       "Directory with ca-cert.pem, server-cert.pem and server-key.pem for NBD clients; or "
       "credential:NAME.");
  app.add_option_function<std::string>(
         "--tls-verify-peer",
         [&options](const std::string& text) {
           if (text != "on" && text != "off") {
             throw CLI::ValidationError("--tls-verify-peer", "'" + text + "' is not on or off");
           }
           options.tls_keys.verify_peer = text == "on";
         },
         "Whether NBD clients need a certificate that the CA has signed (default on).")
      ->type_name("on|off");
}

void add_kernel_options(CLI::App& app, Arguments& arguments, BridgeOptions& options) {
  app.add_option("--kernel", arguments.kernel,
                 "Make the device a disk of the kernel: nbd for the first /dev/nbdN that is free, "
                 "or nbd:N. Takes CAP_SYS_ADMIN. Then it listens only where --listen says.")
      ->type_name("nbd[:N]");
  app.add_option("--map-name", arguments.map_name,
                 "The name of that disk, by which the next start of this program knows it again.")
      ->type_name("NAME");
  app.add_option("--disks", options.disks,
                 "Instead of URI: serve as disks of the kernel what has a file with the line "
                 "BRIDGE=KEY, see rnbd-ctl(8), map.")
      ->type_name("KEY");
  app.add_option("--disk-files", arguments.disk_files,
                 "Where these files are (default /run/rnbd/map.d and /etc/rnbd/map.d). May be "
                 "repeated.")
      ->type_name("DIRECTORY")
      ->allow_extra_args(false)
      ->take_all();
  app.add_option("--dead-timeout", arguments.dead_timeout,
                 "How long new requests of that disk wait while this program is dead, until they "
                 "fail; 0 = not at all (default 1h).")
      ->type_name("DURATION");
  app.add_option("--kernel-retry", arguments.kernel_retry,
                 "After so long the kernel sends requests again that this program has not answered "
                 "before it died; 500ms to 30s (default 900ms).")
      ->type_name("DURATION");
}

void add_options(CLI::App& app, Arguments& arguments, BridgeOptions& options) {
  app.add_option("URI", arguments.uri, "Server and device.");
  std::string help =
      "Listen for NBD clients on unix:PATH or tcp:HOST:PORT; IPv6 as tcp:[::1]:10809, port 0 = any "
      "free one (default tcp:127.0.0.1:10809). May be repeated.";
  for (const BridgeAnnex* annex : bridge_annexes()) help += std::string{" "} + annex->help;
  app.add_option("-l,--listen", arguments.listen, help)
      ->type_name("ADDRESS")
      ->allow_extra_args(false)
      ->take_all();
  for (const ClientOption* key : client_options()) {
    if (!is_option(*key)) continue;
    const auto take = [&arguments, key](const std::vector<std::string>& values) {
      for (const std::string& value : values) arguments.keys.emplace_back(key, value);
      return true;
    };
    app.add_option(option_of(*key), take, key->help)
        ->type_name(key->value)
        ->allow_extra_args(false)
        ->take_all();
  }
  add_tls_options(app, options);
  add_kernel_options(app, arguments, options);
  app.add_option("--max-connections", options.max_connections,
                 "NBD clients at the same time (default 256).")
      ->type_name("N")
      ->check([](const std::string& text) { return complaint_about_number(text, 1, 65536); });
  app.add_option("--log-level", arguments.log_level,
                 "How much to say: error, warning, info or debug (default info).")
      ->type_name("LEVEL")
      ->check([](const std::string& text) {
        return kLogLevels.contains(text)
                   ? ""
                   : "'" + text + "' is not a level; use debug, info, warning or error";
      });
  app.add_option_function<std::string>(
         "--metrics",
         [&options](const std::string& text) {
           const auto address = parse_metrics_address(text);
           if (!address) throw CLI::ValidationError("--metrics", address.error());
           options.metrics = *address;
         },
         "Serve metrics there for Prometheus, over HTTP at /metrics; without ADDRESS on 127.0.0.1.")
      ->type_name("ADDRESS:PORT");
  app.add_flag("--no-uring", options.no_uring,
               "Wait for a client that is alone without io_uring, at two more system calls.");
  app.add_option("--pid-file", options.pid_file, "Write the process id there once ready.")
      ->type_name("FILE");
  app.add_option("--ready-fd", options.ready_fd,
                 "Write one line to this file descriptor once ready, and close it.")
      ->type_name("N");
}

/// The plugin's parameters, KEY=VALUE or KEY=, as options.
std::string as_options(std::string text) {
  for (const ClientOption* key : client_options()) {
    const std::string word = std::string{key->key} + "=";
    const std::string name = is_option(*key) ? option_of(*key) : "the " + std::string{key->key};
    for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at)) {
      const bool whole = at == 0 || text[at - 1] == ' ';
      if (!whole) {
        ++at;
        continue;
      }
      const std::size_t end = at + word.size();
      const bool has_value = end < text.size() && std::strchr(" :;,", text[end]) == nullptr;
      text.replace(at, word.size(), name + (has_value ? " " : ""));
    }
  }
  return text;
}

/// Which option has the URI for its value, if one has.
std::string taker_of_uri(const Arguments& arguments, const BridgeOptions& options) {
  const auto is_uri = [](const std::string& text) {
    return text.starts_with("rnbd://") || text.starts_with("rnbd+tcp://") ||
           text.starts_with("rnbds+tcp://");
  };
  for (const auto& [key, value] : arguments.keys) {
    if (is_uri(value)) return option_of(*key);
  }
  for (const std::string& value : arguments.listen) {
    if (is_uri(value)) return "--listen";
  }
  return is_uri(options.pid_file) ? "--pid-file" : "";
}

bool says_no_path_timeout(const Arguments& arguments) {
  return std::ranges::any_of(arguments.keys, [](const auto& pair) {
    return std::string_view{pair.first->key} == "no-path-timeout";
  });
}

std::string apply_times(const Arguments& arguments, KernelOptions& kernel) {
  using std::chrono::seconds;
  if (!arguments.dead_timeout.empty()) {
    const auto limit = rtrs::parse_duration(arguments.dead_timeout);
    if (!limit) return "--dead-timeout " + limit.error();
    kernel.dead_timeout = std::chrono::ceil<seconds>(*limit);
  }
  if (!arguments.kernel_retry.empty()) {
    const auto limit = rtrs::parse_duration(arguments.kernel_retry);
    if (!limit) return "--kernel-retry " + limit.error();
    if (*limit < std::chrono::milliseconds{500} || *limit > seconds{30})
      return "--kernel-retry is 500ms to 30s";
    kernel.retry = std::chrono::ceil<std::chrono::milliseconds>(*limit);
  }
  return "";
}

/// Sets options.kernel, if it was requested.
std::string apply_kernel(const Arguments& arguments, BridgeOptions& options) {
  constexpr unsigned kMostIndex = (1U << 20) - 1;  // of Linux's minor numbers
  constexpr std::string_view kDriver = "nbd";
  if (arguments.kernel.empty()) {
    const bool stray = !arguments.map_name.empty() || !arguments.dead_timeout.empty() ||
                       !arguments.kernel_retry.empty();
    return stray ? "--map-name, --dead-timeout and --kernel-retry are for --kernel nbd" : "";
  }
  KernelOptions kernel;
  kernel.name = arguments.map_name;
  std::string_view text{arguments.kernel};
  if (text != kDriver) {
    if (!text.starts_with(kDriver) || text.size() < kDriver.size() + 2 || text[3] != ':') {
      return "--kernel '" + arguments.kernel + "' is not nbd or nbd:N";
    }
    const std::string number{text.substr(kDriver.size() + 1)};
    const std::string wrong = complaint_about_number(number, 0, kMostIndex);
    if (!wrong.empty()) return "--kernel nbd:N: " + wrong;
    kernel.index = static_cast<unsigned>(std::stoul(number));
  }
  if (const std::string wrong = kernel::complaint_about_map_name(kernel.name); !wrong.empty()) {
    return "--kernel needs --map-name: " + wrong;
  }
  const std::string wrong = apply_times(arguments, kernel);
  options.kernel = std::move(kernel);
  return wrong;
}

/// The files of the disks have the rest.
std::string apply_disks(const Arguments& arguments, BridgeOptions& options) {
  if (!arguments.uri.empty() || !arguments.kernel.empty() || !arguments.listen.empty())
    return "--disks takes URI and options from the files of the disks; leave them out";
  for (const auto& [key, value] : arguments.keys) {
    if (std::string_view{key->key} != "control") {
      return "--disks takes options from the files of the disks; leave " + option_of(*key) + " out";
    }
    auto control = absolute_socket_path(value);
    if (!control) return "--control: " + control.error();
    options.client.control = *std::move(control);
  }
  if (!arguments.disk_files.empty()) options.disk_files = arguments.disk_files;
  options.log_level = kLogLevels.at(arguments.log_level);
  return "";
}

/// Its lanes are those that the workers of NBD clients would take.
std::string apply_other_face(const Arguments& arguments, BridgeOptions& options, bool has_device) {
  for (const std::string& text : arguments.listen) {
    const BridgeAnnex* const annex = annex_of_address(text);
    if (annex == nullptr) continue;
    if (auto path = annex->path_of(text); !path) return "--listen " + path.error();
    if (!has_device) return "--listen " + text + " needs a device: write it behind the server";
    if (arguments.listen.size() > 1 || options.kernel) {
      return "--listen " + text +
             " is for one client, and nobody else; start another rnbd-bridge for others";
    }
    options.other_face = text;
  }
  return "";
}

std::string apply(const Arguments& arguments, BridgeOptions& options) {
  if (!options.disks.empty()) return apply_disks(arguments, options);
  if (arguments.uri.empty()) {
    const std::string taker = taker_of_uri(arguments, options);
    if (!taker.empty()) return taker + ": the value is missing; it has taken the URI for it";
    return "no server is named; write e.g. rnbd-bridge rnbd+tcp://storage/disk0";
  }
  ConfigReader reader;
  if (auto done = reader.set("uri", arguments.uri); !done) return as_options(done.error());
  bool has_device = !parse_device_uri(arguments.uri)->device.empty();
  for (const auto& [key, value] : arguments.keys) {
    if (auto done = reader.set(key->key, value); !done) return as_options(done.error());
    has_device = has_device || std::string_view{key->key} == "device";
  }
  if (!has_device) (void)reader.set("dynamic-export", "true");
  if (std::string wrong = apply_kernel(arguments, options); !wrong.empty()) return wrong;
  if (options.kernel && !has_device) return "--kernel needs a device: write it behind the server";
  if (options.kernel && !says_no_path_timeout(arguments)) {
    (void)reader.set("no-path-timeout", kKernelPatience);
  }
  auto config = reader.complete();
  if (!config) return as_options(config.error());
  options.client = *std::move(config);
  options.client.event_loops = true;
  options.client.how_to_list = "rnbd-ctl discover " + options.client.server_and_keys();
  if (std::string wrong = apply_other_face(arguments, options, has_device); !wrong.empty())
    return wrong;
  for (const std::string& text : arguments.listen) {
    if (text == options.other_face) continue;
    auto address = nbd::parse_nbd_address(text);
    if (!address) return "--listen " + address.error();
    options.listen.push_back(*std::move(address));
  }
  options.log_level = kLogLevels.at(arguments.log_level);
  if (options.tls_mode() != rtrs::TlsMode::off && options.tls_keys.none()) {
    return "--tls needs keys of the NBD clients; add --tls-psk FILE or --tls-certificates "
           "DIRECTORY";
  }
  return "";
}

}  // namespace

tl::expected<BridgeOptions, EarlyExit> parse_bridge_options(int argc, const char* const* argv) {
  CLI::App app{kDescription, "rnbd-bridge"};
  Arguments arguments;
  BridgeOptions options;
  add_options(app, arguments, options);
  if (auto early = parse_arguments(app, kExamples, "there is one URI only", argc, argv)) {
    return tl::unexpected(std::move(*early));
  }
  std::string wrong = apply(arguments, options);
  if (wrong.empty()) wrong = complaint_about_number_of_ready_fd(app, options.ready_fd);
  if (!wrong.empty()) return tl::unexpected(usage_error(app, wrong));
  return options;
}

}  // namespace rnbd
