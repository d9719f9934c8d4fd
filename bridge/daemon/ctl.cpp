// SPDX-License-Identifier: BSD-3-Clause
// rnbd-ctl: asks and tells a running program over its control socket.
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <CLI/Validators.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <nlohmann/json.hpp>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "bridge/control/unix_socket.hpp"
#include "bridge/daemon/cli.hpp"
#include "bridge/daemon/ctl_discover.hpp"
#include "bridge/daemon/ctl_keys.hpp"
#include "bridge/daemon/ctl_top.hpp"
#include "bridge/daemon/ctl_view.hpp"
#include "bridge/daemon/process.hpp"

namespace rnbd {
namespace {

constexpr const char* kDescription =
    "rnbd-ctl - show and change what a running rnbdkit program does\n"
    "\n"
    "SOCKET is the control socket of rnbd-bridge or rnbd-server (--control) or of nbdkit's rnbd "
    "plugin (control=).\n"
    "COMMAND is one that the program knows; `help` lists them.\n"
    "\n"
    "rnbd-ctl keygen and rnbd-ctl certgen make keys for TLS; both have a --help of their own.\n";

constexpr const char* kExamples = R"(Examples:
  Which paths are there, and how are they?
    rnbd-ctl /run/rnbd/disk0.control status

  Move a session to another network card, without a pause:
    rnbd-ctl /run/rnbd/disk0.control add-path 10.0.1.1
    rnbd-ctl /run/rnbd/disk0.control remove-path 10.0.0.1

  What do devices and paths do now?
    rnbd-ctl /run/rnbd/disk0.control top

  For scripts:
    rnbd-ctl --json /run/rnbd/disk0.control status | jq .paths

rnbd-ctl(8) explains everything.)";

/// Longer than any command takes.
constexpr timeval kPatience{30, 0};
constexpr std::size_t kLongestAnswer = 16 << 20;

using Answer = tl::expected<std::string, std::string>;

struct Invocation {
  std::string socket;
  std::vector<std::string> words;
  bool json = false;
  TopOptions top = {};
};

std::string reason() {
  if (errno == EAGAIN) return "the program does not answer; does it hang?";
  return std::strerror(errno);
}

bool is_socket(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && S_ISSOCK(status.st_mode);
}

tl::expected<int, std::string> connect_to(const std::string& path) {
  if (std::string wrong = complaint_about_socket_path(path); !wrong.empty()) {
    return tl::unexpected(wrong);
  }
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size());
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return tl::unexpected(reason());
  ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &kPatience, sizeof(kPatience));
  ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &kPatience, sizeof(kPatience));
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) return fd;
  const int error = errno;
  std::string why = reason();
  if (error == ECONNREFUSED) {
    // Of what is no socket the system says that, too.
    why = is_socket(path) ? why + "; the program that made it has ended"
                          : "this is no socket; name what the program was given as --control or "
                            "control=";
  }
  if (error == ENOENT) why += "; was the program started with a control socket there?";
  ::close(fd);
  return tl::unexpected(why);
}

/// Sends a line and returns the one that comes back.
Answer ask(int fd, std::string line) {
  line += '\n';
  for (std::size_t sent = 0; sent < line.size();) {
    const ssize_t n = ::send(fd, line.data() + sent, line.size() - sent, MSG_NOSIGNAL);
    if (n < 0 && errno != EPIPE) return tl::unexpected(reason());
    if (n < 0) break;  // turned away: the answer says why
    sent += static_cast<std::size_t>(n);
  }
  std::string answer;
  for (char buffer[4096]; !answer.ends_with('\n') && answer.size() < kLongestAnswer;) {
    const ssize_t n = ::recv(fd, buffer, sizeof(buffer), 0);
    if (n < 0) return tl::unexpected(reason());
    if (n == 0) return tl::unexpected(std::string{"the program hung up"});
    answer.append(buffer, static_cast<std::size_t>(n));
  }
  answer.pop_back();
  return answer;
}

/// The exit status.
int show(const Invocation& invocation, const std::string& answer) {
  const auto json = nlohmann::ordered_json::parse(answer, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    std::fprintf(stderr, "rnbd-ctl: %s does not answer as a control socket does\n",
                 invocation.socket.c_str());
    return 1;
  }
  if (invocation.json) {
    std::puts(answer.c_str());
  } else if (json.contains("error")) {
    const std::string message = json.value("message", std::string{});
    std::fprintf(stderr, "rnbd-ctl: %s\n", readable_text(message).c_str());
  } else if (json.size() == 1 && json.contains("text") && json["text"].is_string()) {
    std::fputs(json["text"].get_ref<const std::string&>().c_str(), stdout);
  } else {
    std::fputs(readable(json).c_str(), stdout);
  }
  return json.contains("error") ? 1 : 0;
}

Answer ask_once(const std::string& socket, const std::string& line) {
  const auto fd = connect_to(socket);
  Answer answer = fd ? ask(*fd, line) : Answer{tl::unexpect, fd.error()};
  if (fd) ::close(*fd);
  return answer;
}

int run(const Invocation& invocation) {
  if (invocation.words.front() == "top") {
    TopOptions top = invocation.top;
    top.json = invocation.json;
    return run_top(top, [&] { return ask_once(invocation.socket, "counters"); });
  }
  std::string line;
  for (const std::string& word : invocation.words) line += (line.empty() ? "" : " ") + word;
  const Answer answer = ask_once(invocation.socket, line);
  if (answer) return show(invocation, *answer);
  std::fprintf(stderr, "rnbd-ctl: %s: %s\n", invocation.socket.c_str(), answer.error().c_str());
  return 1;
}

tl::expected<Invocation, EarlyExit> parse(int argc, const char* const* argv) {
  CLI::App app{kDescription, "rnbd-ctl"};
  Invocation invocation;
  app.add_flag("--json", invocation.json, "Print the answer as it is, one line of JSON.");
  bool check = false, force = false;
  app.add_flag("--check", check, "reload: only say what it would do.");
  app.add_flag("--force", force, "Do it although somebody uses what it is about.");
  app.add_flag("--once", invocation.top.once, "top: one interval, then end.");
  app.add_option("--interval", invocation.top.interval, "top: seconds to measure (default 1).")
      ->type_name("SECONDS")
      ->check(CLI::Range(0.1, 3600.0));
  app.add_option("SOCKET", invocation.socket, "The program's control socket.");
  app.add_option("COMMAND", invocation.words, "What to do, and with what.")
      ->type_name("[ARGUMENT...]");
  if (auto early = parse_arguments(app, kExamples, "name the socket first", argc, argv)) {
    return tl::unexpected(std::move(*early));
  }
  if (invocation.words.empty()) {
    return tl::unexpected(usage_error(
        app, "write rnbd-ctl SOCKET COMMAND, e.g. rnbd-ctl /run/rnbd/x.control status"));
  }
  if (check) invocation.words.emplace_back("--check");
  if (force) invocation.words.emplace_back("--force");
  for (const std::string& word : invocation.words) {
    if (word.find('\n') != std::string::npos) {
      return tl::unexpected(usage_error(app, "a command has one line only"));
    }
  }
  return invocation;
}

}  // namespace
}  // namespace rnbd

int main(int argc, char** argv) {
  if (!rnbd::open_standard_streams()) return 1;
  try {
    if (const auto status = rnbd::run_key_command(argc, argv)) return *status;
    if (const auto status = rnbd::run_discover(argc, argv)) return *status;
    const auto invocation = rnbd::parse(argc, argv);
    if (invocation) return rnbd::run(*invocation);
    const rnbd::EarlyExit& early = invocation.error();
    std::fputs(early.text.c_str(), early.status == 0 ? stdout : stderr);
    return early.status;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rnbd-ctl: %s\n", error.what());
    return 1;
  }
}
