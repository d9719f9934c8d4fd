#include "nbdkit-plugin/config.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <random>

#include "nbdkit-plugin/duration.hpp"
#include "rdma/wire/messages.hpp"

namespace rnbd::plugin {
namespace {

using Error = tl::unexpected<std::string>;
using Done = tl::expected<void, std::string>;

constexpr std::size_t kMaxPaths = 1;

std::string quoted(std::string_view text) { return "'" + std::string{text} + "'"; }

/// One of a few words.
template <class T, std::size_t N>
tl::expected<T, std::string> choose(std::string_view value,
                                    const std::pair<std::string_view, T> (&words)[N]) {
  std::string list;
  for (const auto& [word, meaning] : words) {
    if (word == value) return meaning;
    list += (list.empty() ? "" : ", ") + std::string{word};
  }
  return Error{quoted(value) + " is none of " + list};
}

template <class T>
Done store(T& to, tl::expected<T, std::string> value) {
  if (!value) return Error{value.error()};
  to = *std::move(value);
  return {};
}

tl::expected<bool, std::string> parse_bool(std::string_view value) {
  return choose<bool>(value, {{"true", true},
                              {"false", false},
                              {"yes", true},
                              {"no", false},
                              {"on", true},
                              {"off", false},
                              {"1", true},
                              {"0", false}});
}

tl::expected<unsigned, std::string> parse_number(std::string_view value, unsigned least,
                                                 unsigned most) {
  unsigned number = 0;
  auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc{} || end != value.data() + value.size() || number < least ||
      number > most) {
    return Error{quoted(value) + " is not a number from " + std::to_string(least) + " to " +
                 std::to_string(most)};
  }
  return number;
}

tl::expected<rtrs::Duration, std::string> parse_period(std::string_view value,
                                                       rtrs::Duration least) {
  constexpr std::chrono::hours kMost{1};
  auto duration = parse_duration(value);
  if (duration && (*duration < least || *duration > kMost)) {
    const auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(least);
    return Error{quoted(value) + " is not between " + std::to_string(milliseconds.count()) +
                 "ms and 3600s"};
  }
  return duration;
}

tl::expected<std::string, std::string> parse_session_name(std::string_view value) {
  if (rtrs::wire::is_valid_session_name(value)) return std::string{value};
  return Error{quoted(value) +
               " is not a session name; write 1 to 254 printable characters without '/' and '.'"};
}

tl::expected<std::string, std::string> parse_device(std::string_view value) {
  std::string complaint = complaint_about_device_name(value);
  if (!complaint.empty()) return Error{complaint};
  return std::string{value};
}

Done set_digest(Config& config, std::string_view value) {
  auto level = choose<int>(value, {{"all", 2}, {"header", 1}, {"none", 0}});
  if (!level) return Error{level.error()};
  config.header_digest = *level >= 1;
  config.data_digest = *level >= 2;
  return {};
}

tl::expected<Use, std::string> parse_use(std::string_view value) {
  return choose<Use>(value, {{"auto", Use::automatic}, {"on", Use::always}, {"off", Use::never}});
}

/// The keys that stand for themselves.
std::optional<Done> set_option(Config& config, std::string_view key, std::string_view value) {
  if (key == "device") return store(config.device, parse_device(value));
  if (key == "access") {
    auto mode = choose<wire::AccessMode>(value, {{"ro", wire::AccessMode::read_only},
                                                 {"rw", wire::AccessMode::read_write},
                                                 {"migration", wire::AccessMode::migration}});
    if (!mode) return Done{Error{mode.error()}};
    config.access = *mode;
    return Done{};
  }
  if (key == "dynamic-export") return store(config.dynamic_export, parse_bool(value));
  if (key == "session") return store(config.session_name, parse_session_name(value));
  if (key == "lanes") return store(config.lanes, parse_number(value, 1, 64));
  if (key == "connect") {
    return store(config.connect_now, choose<bool>(value, {{"lazy", false}, {"now", true}}));
  }
  if (key == "connect-timeout") {
    return store(config.connect_timeout, parse_period(value, std::chrono::milliseconds{1}));
  }
  if (key == "heartbeat") {
    return store(config.heartbeat, parse_period(value, std::chrono::milliseconds{10}));
  }
  if (key == "heartbeat-misses")
    return store(config.heartbeat_misses, parse_number(value, 1, 1000));
  if (key == "digest") return set_digest(config, value);
  if (key == "extensions") return store(config.extensions, parse_bool(value));
  if (key == "discard") return store(config.geometry.discard, parse_use(value));
  if (key == "write-zeroes") return store(config.geometry.write_zeroes, parse_use(value));
  return std::nullopt;
}

/// The keys that name the server are kept until all are there.
template <class T>
Done store_once(std::optional<T>& to, tl::expected<T, std::string> value) {
  if (!value) return Error{value.error()};
  if (to.has_value()) return Error{"may be given only once"};
  to = *std::move(value);
  return {};
}

}  // namespace

const char kConfigHelp[] =
    "uri=<URI>                 rnbd+tcp://HOST[:PORT]/DEVICE (TCP) or rnbd://HOST[:PORT]/DEVICE\n"
    "                          (RDMA).\n"
    "server=HOST[:PORT]        The server, when there is no uri. Default port 1234.\n"
    "transport=tcp|rdma        How to reach the server, when there is no uri (default tcp).\n"
    "path=[SRC@]DST[:PORT]     A path to the server with a chosen source address.\n"
    "device=NAME               The export to open, when the uri does not name one.\n"
    "dynamic-export=BOOL       Open the export that each client names (default false).\n"
    "access=ro|rw|migration    Access mode (default rw, and ro where the export is read-only).\n"
    "session=NAME              Name of the session at the server (default: made up).\n"
    "lanes=N                   I/O connections to the server (default: one per CPU, at most 4).\n"
    "connect=lazy|now          now: fail at start when the server cannot be used (default lazy).\n"
    "connect-timeout=DURATION  For all of a connection attempt (default 10s).\n"
    "heartbeat=DURATION        Interval between signs of life (default 500ms).\n"
    "heartbeat-misses=N        Silent intervals until the server counts as lost (default 5).\n"
    "digest=all|header|none    CRC32C over TCP of headers and data (default all).\n"
    "extensions=BOOL           Use what only rnbdkit servers have (default true).\n"
    "discard=auto|on|off       Pass trim on (default auto: to rnbdkit servers).\n"
    "write-zeroes=auto|on|off  Let the server write zeroes (default auto: rnbdkit servers).";

std::string Config::server() const {
  const rtrs::PathAddress& path = paths.front();
  const bool ipv6 = path.host.find(':') != std::string::npos;
  return std::string{path.transport == rtrs::TransportKind::tcp ? "rnbd+tcp" : "rnbd"} + "://" +
         (ipv6 ? "[" + path.host + "]" : path.host) + ":" + std::to_string(path.port);
}

Done ConfigReader::set(std::string_view key, std::string_view value) {
  const auto named = [&](Done done) -> Done {
    if (!done) return Error{std::string{key} + "=: " + done.error()};
    return done;
  };
  if (key == "uri") return named(store_once(uri_, parse_device_uri(value)));
  if (key == "server") return named(store_once(server_, parse_host_port(value)));
  if (key == "transport") {
    return named(store_once(
        transport_, choose<rtrs::TransportKind>(value, {{"tcp", rtrs::TransportKind::tcp},
                                                        {"rdma", rtrs::TransportKind::rdma}})));
  }
  if (key == "path") {
    // The transport may be named later; here only the form is judged.
    if (auto path = parse_path(value, rtrs::TransportKind::tcp); !path) {
      return named(Error{path.error()});
    }
    paths_.emplace_back(value);
    return {};
  }
  if (auto done = set_option(config_, key, value)) return named(*std::move(done));
  return Error{"unknown parameter " + quoted(key) +
               "; `nbdkit rnbd --help` and nbdkit-rnbd-plugin(1) list all"};
}

tl::expected<Config, std::string> ConfigReader::complete() const {
  Config config = config_;
  rtrs::TransportKind transport = transport_.value_or(rtrs::TransportKind::tcp);
  if (uri_) {
    if (server_) return Error{"give either uri= or server=, not both"};
    if (transport_ && *transport_ != uri_->transport) {
      return Error{"transport= contradicts uri=; leave transport= out"};
    }
    transport = uri_->transport;
    config.paths.push_back(uri_->path());
    if (!uri_->device.empty() && !config.device.empty() && uri_->device != config.device) {
      return Error{"uri= names the device " + quoted(uri_->device) + " and device= another one, " +
                   quoted(config.device) + "; name it once"};
    }
    if (!uri_->device.empty()) config.device = uri_->device;
  } else if (server_) {
    config.paths.push_back({transport, "", server_->host, server_->port});
  }
  for (const std::string& text : paths_) {
    // A path to the same place says how to get there.
    rtrs::PathAddress path = *parse_path(text, transport);
    const auto same = [&](const rtrs::PathAddress& other) {
      return other.host == path.host && other.port == path.port && other.source.empty();
    };
    const auto found = std::find_if(config.paths.begin(), config.paths.end(), same);
    if (found != config.paths.end()) {
      *found = path;
    } else {
      config.paths.push_back(path);
    }
  }
  if (config.paths.empty()) {
    return Error{"no server is named; write uri=rnbd+tcp://HOST[:PORT]/DEVICE"};
  }
  if (config.paths.size() > kMaxPaths) {
    return Error{"a session over several paths is not supported; name one path"};
  }
  if (config.device.empty() && !config.dynamic_export) {
    return Error{
        "no device is named; append it to the URI, write device=NAME, or let clients choose with "
        "dynamic-export=true"};
  }
  return config;
}

std::string make_session_name() {
  std::array<char, 65> host{};
  if (gethostname(host.data(), host.size() - 1) != 0 || host[0] == '\0') host = {"host"};
  std::string name{host.data()};
  for (char& c : name) {
    const bool plain =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
    if (!plain) c = '-';
  }
  std::random_device random;
  std::array<char, 9> digits{};
  std::snprintf(digits.data(), digits.size(), "%08x", static_cast<unsigned>(random()));
  return name + "-" + digits.data();
}

}  // namespace rnbd::plugin
