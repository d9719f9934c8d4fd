// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/ctl/supervisor.hpp"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>
#include <vector>

#include "rdma/owned_fd.hpp"

namespace rnbd {
namespace {

namespace fs = std::filesystem;
using std::chrono::steady_clock;

constexpr std::chrono::seconds kTimeToStop{20};  ///< a bridge drains for 3 s
constexpr std::chrono::milliseconds kLookAgain{20};

std::vector<char*> pointers_to(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

/// The exit status; -1: it could not be started, which errno explains. `out`: where its standard
/// output goes; -1: to ours.
int run_program(std::vector<std::string> words, int out = -1) {
  pid_t child = 0;
  const std::vector<char*> pointers = pointers_to(words);
  posix_spawn_file_actions_t files;
  ::posix_spawn_file_actions_init(&files);
  if (out >= 0) ::posix_spawn_file_actions_adddup2(&files, out, 1);
  errno = ::posix_spawnp(&child, words.front().c_str(), &files, nullptr, pointers.data(), environ);
  const int failed = errno;
  ::posix_spawn_file_actions_destroy(&files);
  errno = failed;
  if (errno != 0) return -1;
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/// The standard output of a program, a few lines; "" when it fails.
std::string output_of(std::vector<std::string> words) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return "";
  const rtrs::OwnedFd from{ends[0]};
  rtrs::OwnedFd to{ends[1]};
  if (run_program(std::move(words), to.get()) != 0) return "";
  to.reset();
  std::string text;
  std::array<char, 4096> buffer{};
  for (ssize_t n = 0; (n = ::read(from.get(), buffer.data(), buffer.size())) > 0;) {
    text.append(buffer.data(), static_cast<std::size_t>(n));
  }
  return text;
}

/// The failure with its reason, and where the rest is.
std::string with_reason(const std::string& what, const std::string& log, const std::string& place) {
  const std::string reason = reason_in_log(log);
  return reason.empty() ? what + "; its log says why: " + place
                        : what + ": " + reason + " (its log: " + place + ")";
}

class Systemd final : public Supervisor {
 public:
  std::string start(const Mapping& mapping) override {
    const std::string name = bridge_of(mapping);
    const std::string wrong = systemctl("start", name);
    return wrong.empty() ? "" : with_reason(wrong, journal_of(name), log_of(name));
  }
  std::string enable(const std::string& name) override { return systemctl("enable", name); }
  /// --force: a bridge that does not end on SIGTERM is killed by its unit after TimeoutStopSec=.
  std::string stop(const std::string& name, bool) override { return systemctl("stop", name); }
  void kill(const std::string& name) override {
    if (!is_bridge_key(name))
      run_program({"systemctl", "--quiet", "--no-block", "stop", service_of(name)});
    run_program({"systemctl", "--quiet", "--signal=KILL", "kill", service_of(name)});
  }
  std::string disable(const std::string& name) override { return systemctl("disable", name); }
  bool runs(const std::string& name) const override {
    return run_program({"systemctl", "--quiet", "is-active", service_of(name)}) == 0;
  }
  std::string log_of(const std::string& name) const override {
    return "journalctl -u " + service_of(name);
  }
  void forget(const std::string&) override {}  // the journal keeps its lines

 private:
  static std::string service_of(const std::string& name) { return unit_of(name) + ".service"; }

  /// The last error, or else the last lines.
  static std::string journal_of(const std::string& name) {
    run_program({"journalctl", "--quiet", "--sync"});
    const auto lines = [&](const char* number, const char* priority) {
      return output_of({"journalctl", "--quiet", "--no-pager", "--output=cat", number, priority,
                        "--identifier=rnbd-bridge", "--unit=" + service_of(name)});
    };
    const std::string error = lines("--lines=1", "--priority=err");
    return error.empty() ? lines("--lines=5", "--priority=debug") : error;
  }

  static std::string systemctl(const char* verb, const std::string& name) {
    const int status = run_program({"systemctl", "--quiet", verb, service_of(name)});
    if (status == 0) return "";
    const std::string command = std::string{"systemctl "} + verb + " " + service_of(name);
    return status < 0 ? command + ": " + std::strerror(errno)
                      : command + " failed with status " + std::to_string(status);
  }
};

/// False: the program has closed its end, and has written no line.
bool await_ready_line(int fd) {
  std::string line;
  for (std::array<char, 512> buffer{}; line.find('\n') == std::string::npos;) {
    const ssize_t n = ::read(fd, buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    line.append(buffer.data(), static_cast<std::size_t>(n));
  }
  return true;
}

/// Has the bridge in a session of its own, with files for its process id and its log.
class Forked final : public Supervisor {
 public:
  Forked(std::string root, std::string bridge)
      : root_{std::move(root)}, bridge_{std::move(bridge)} {}

  std::string start(const Mapping& mapping) override {
    const std::string name = bridge_of(mapping);
    if (!mapping.bridge.empty() && runs(name)) return "";
    std::error_code error;
    fs::create_directories(folder(), error);
    if (error) return folder() + ": " + error.message();
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) return std::strerror(errno);
    const rtrs::OwnedFd ready{ends[0]};
    rtrs::OwnedFd told{ends[1]};
    pid_t child = 0;
    if (const int failed = spawn(mapping, told.get(), child); failed != 0) {
      return program() + ": " + std::strerror(failed);
    }
    told.reset();
    if (await_ready_line(ready.get())) return "";
    ::waitpid(child, nullptr, 0);
    std::stringstream log;
    log << std::ifstream{log_of(name)}.rdbuf();
    return with_reason("the bridge has ended", log.str(), log_of(name));
  }
  std::string enable(const std::string&) override {
    return "there is no systemd, which would start it at the next boot; leave --persist out";
  }
  std::string stop(const std::string& name, bool force) override {
    const pid_t process = process_of(name);
    if (process == 0) return "";
    ::kill(process, SIGTERM);
    if (await_end(name)) return "";
    if (force) ::kill(process, SIGKILL);
    if (force && await_end(name)) return "";
    return "rnbd-bridge, process " + std::to_string(process) + ", does not end; --force kills it";
  }
  void kill(const std::string& name) override {
    if (const pid_t process = process_of(name); process != 0) ::kill(process, SIGKILL);
  }
  std::string disable(const std::string&) override { return ""; }
  bool runs(const std::string& name) const override { return process_of(name) != 0; }
  std::string log_of(const std::string& name) const override { return file(name, ".log"); }
  void forget(const std::string& name) override {
    std::error_code ignored;
    fs::remove(log_of(name), ignored);
  }

 private:
  std::string folder() const { return root_ + "/run/rnbd/map"; }
  std::string file(const std::string& name, const char* end) const {
    return folder() + "/" + name + end;
  }

  /// The bridge of an installation; in a build folder it is beside this program, too.
  std::string program() const {
    if (!bridge_.empty()) return bridge_;
    std::error_code ignored;
    const fs::path beside =
        fs::read_symlink("/proc/self/exe", ignored).replace_filename("rnbd-bridge");
    return fs::exists(beside, ignored) ? beside.string() : "rnbd-bridge";
  }

  std::vector<std::string> words_for(const Mapping& mapping) const {
    const std::string name = bridge_of(mapping);
    std::vector<std::string> words{program()};
    if (mapping.bridge.empty()) {
      words.insert(words.end(), {"--kernel", mapping.kernel, "--map-name", mapping.name});
    } else {
      words.insert(words.end(), {"--disks", mapping.bridge});
      for (const bool persist : {false, true})
        words.insert(words.end(), {"--disk-files", folder_of_mappings(root_, persist)});
    }
    words.insert(words.end(), {"--control", file(name, ".control"), "--pid-file",
                               file(name, ".pid"), "--ready-fd", "3"});
    if (!mapping.bridge.empty()) return words;
    words.insert(words.end(), mapping.options.begin(), mapping.options.end());
    words.push_back(mapping.uri);
    return words;
  }

  /// 0 or an errno.
  int spawn(const Mapping& mapping, int told, pid_t& child) const {
    std::vector<std::string> words = words_for(mapping);
    const std::vector<char*> pointers = pointers_to(words);
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    ::posix_spawn_file_actions_init(&files);
    ::posix_spawnattr_init(&attributes);
    ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID);
    ::posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    ::posix_spawn_file_actions_addopen(&files, 1, file(bridge_of(mapping), ".log").c_str(),
                                       O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ::posix_spawn_file_actions_adddup2(&files, 1, 2);
    ::posix_spawn_file_actions_adddup2(&files, told, 3);
    const int error = ::posix_spawnp(&child, words.front().c_str(), &files, &attributes,
                                     pointers.data(), environ);
    ::posix_spawn_file_actions_destroy(&files);
    ::posix_spawnattr_destroy(&attributes);
    return error;
  }

  /// 0: it has none, or the process is another program by now.
  pid_t process_of(const std::string& name) const {
    pid_t process = 0;
    std::ifstream{file(name, ".pid")} >> process;
    if (process <= 0) return 0;
    std::ifstream command{"/proc/" + std::to_string(process) + "/cmdline"};
    std::string word;
    while (std::getline(command, word, '\0')) {
      if (word == file(name, ".pid")) return process;
    }
    return 0;
  }

  bool await_end(const std::string& name) const {
    const auto limit = steady_clock::now() + kTimeToStop;
    while (process_of(name) != 0) {
      if (steady_clock::now() >= limit) return false;
      std::this_thread::sleep_for(kLookAgain);
    }
    return true;
  }

  std::string root_, bridge_;
};

}  // namespace

std::string Supervisor::unit_of(const std::string& name) {
  return (is_bridge_key(name) ? "rnbd-maps@" : "rnbd-map@") + name;
}

std::string reason_in_log(const std::string& log) {
  constexpr std::string_view kProgram = "rnbd-bridge: ", kError = "error: ";
  std::string last, of_program, error;
  std::istringstream lines{log};
  for (std::string line; std::getline(lines, line);) {
    if (line.empty()) continue;
    const std::size_t begin = line.find(kProgram);
    if (begin != std::string::npos) line.erase(0, begin + kProgram.size());
    const bool is_error = line.starts_with(kError);
    if (is_error) line.erase(0, kError.size());
    if (is_error) error = line;
    if (begin != std::string::npos) of_program = line;
    last = line;
  }
  return !error.empty() ? error : !of_program.empty() ? of_program : last;
}

std::unique_ptr<Supervisor> choose_supervisor(const std::string& root, const std::string& bridge) {
  std::error_code ignored;  // sd_booted(3)
  if (fs::is_directory(root + "/run/systemd/system", ignored)) return std::make_unique<Systemd>();
  return std::make_unique<Forked>(root, bridge);
}

}  // namespace rnbd
