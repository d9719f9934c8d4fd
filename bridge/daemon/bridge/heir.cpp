// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/daemon/bridge/heir.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "bridge/daemon/logging.hpp"
#include "bridge/protocol/printable.hpp"

namespace rnbd {
namespace {

using rtrs::Failure;
using std::chrono::steady_clock;

/// For the heir to connect to its server; more than connect-timeout by default.
constexpr std::chrono::seconds kTimeToGetReady{15};
/// For handshakes. Only new clients wait meanwhile.
constexpr std::chrono::milliseconds kTimeToMeet{1500};
constexpr std::chrono::milliseconds kMoment{50};
/// For requests under way. Clients wait meanwhile.
constexpr std::chrono::milliseconds kTimeToPause{250};
/// For the disks to be closed here, and opened by the heir.
constexpr std::chrono::seconds kTimeToClose{2}, kTimeToOpen{2};
/// On top, for the disk of each client.
constexpr std::chrono::milliseconds kTimeToOpenOne{20};
/// For a process that has closed its end.
constexpr std::chrono::milliseconds kTimeToDie{500};
constexpr int kHeirDescriptor = 3;

void tell(rtrs::LogLevel level, const std::string& text) { log_function()(level, text); }

std::vector<char*> pointers_to(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

/// Becomes the program. Between clone and exec nothing may be called that takes a lock.
[[noreturn]] void become(const char* path, char* const* words, char* const* variables, int socket,
                         const std::string& refusal) {
  ::dup2(socket, kHeirDescriptor);
  ::fcntl(kHeirDescriptor, F_SETFD, 0);  // dup2() leaves it as it is if both are one
  ::syscall(SYS_close_range, kHeirDescriptor + 1, ~0U, 0);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::execve(path, words, variables);
  ::send(kHeirDescriptor, refusal.data(), refusal.size(), MSG_NOSIGNAL);
  ::_exit(127);
}

}  // namespace

Program Program::of(int argc, const char* const* argv) {
  namespace fs = std::filesystem;
  Program program{.path = {}, .arguments = {argv, argv + argc}};
  std::error_code ignored;
  const std::string& name = program.arguments.front();
  program.path = name.find('/') != std::string::npos
                     ? fs::absolute(name, ignored).string()
                     : fs::read_symlink("/proc/self/exe", ignored).string();
  return program;
}

// ---- Its process --------------------------------------------------------------------------------

class Heirs::Child {
 public:
  ~Child() { end(); }

  pid_t pid() const { return pid_; }
  /// "" or the reason.
  std::string start(const Program& program);
  /// The next message. Errors: a sentence; "" if `over` can be read.
  tl::expected<std::string, std::string> await(HeirMessage what, std::chrono::milliseconds patience,
                                               int over);
  HeirLink& link() { return *link_; }
  /// Kills it, if it is there. It has served nobody, as it was not told to.
  void end();
  /// For a process that has hung up.
  std::string how_it_ended() const;

 private:
  bool has_ended(std::chrono::milliseconds patience) const;

  pid_t pid_ = 0;
  rtrs::OwnedFd process_;  ///< its pidfd
  std::optional<HeirLink> link_;
};

std::string Heirs::Child::start(const Program& program) {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0)
    return std::string{"socketpair: "} + std::strerror(errno);
  link_.emplace(ends[0]);
  const rtrs::OwnedFd theirs{ends[1]};
  std::vector<std::string> words = program.arguments;
  std::vector<std::string> variables;
  for (char** each = environ; *each != nullptr; ++each) variables.emplace_back(*each);
  variables.push_back(std::string{kHeirVariable} + "=" + std::to_string(kHeirDescriptor));
  const std::string wrong = "cannot start " + program.path;
  if (::access(program.path.c_str(), X_OK) != 0) return wrong + ": " + std::strerror(errno);
  const std::string refusal = static_cast<char>(HeirMessage::refuse) + wrong;
  const std::vector<char*> word_pointers = pointers_to(words);
  const std::vector<char*> variable_pointers = pointers_to(variables);
  // A sibling: systemd ends a service in order only if the main process is a child of its own when
  // it is told of it.
  int process = -1;
  const long pid = ::syscall(SYS_clone, CLONE_PARENT | CLONE_PIDFD | SIGCHLD, nullptr, &process,
                             nullptr, nullptr);
  if (pid == 0)
    become(program.path.c_str(), word_pointers.data(), variable_pointers.data(), theirs.get(),
           refusal);
  if (pid < 0) return wrong + ": " + std::strerror(errno);
  pid_ = static_cast<pid_t>(pid);
  process_ = rtrs::OwnedFd{process};
  return "";
}

bool Heirs::Child::has_ended(std::chrono::milliseconds patience) const {
  pollfd end{process_.get(), POLLIN, 0};
  return ::poll(&end, 1, static_cast<int>(patience.count())) > 0;
}

tl::expected<std::string, std::string> Heirs::Child::await(HeirMessage what,
                                                           std::chrono::milliseconds patience,
                                                           int over) {
  std::array<pollfd, 2> both{{{link_->descriptor(), POLLIN, 0}, {over, POLLIN, 0}}};
  const auto until = steady_clock::now() + patience;
  for (;;) {
    const auto rest =
        std::chrono::ceil<std::chrono::milliseconds>(until - steady_clock::now()).count();
    const int n = rest <= 0 ? 0 : ::poll(both.data(), both.size(), static_cast<int>(rest));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0)
      return tl::unexpected("the new program has not answered within " +
                            std::to_string(patience.count()) + " ms");
    break;
  }
  if (both[1].revents != 0) return tl::unexpected(std::string{});
  std::vector<int> none;
  auto message = link_->receive(none);
  for (const int each : none) ::close(each);
  if (!message) return tl::unexpected(how_it_ended());
  const char kind = message->front();
  if (kind == static_cast<char>(HeirMessage::refuse))
    return tl::unexpected("the new program refuses: " + on_one_line(message->substr(1)));
  if (kind != static_cast<char>(what))
    return tl::unexpected(std::string{"the new program does not keep to the protocol"});
  return message->substr(1);
}

std::string Heirs::Child::how_it_ended() const {
  return has_ended(kTimeToDie) ? "the new program has ended; its lines in the log say why"
                               : "the new program has hung up";
}

void Heirs::Child::end() {
  if (!process_) return;
  ::syscall(SYS_pidfd_send_signal, process_.get(), SIGKILL, nullptr, 0);
  has_ended(kTimeToDie);
  process_.reset();
}

// ---- The replacement ----------------------------------------------------------------------------

Heirs::Heirs(Program program, HeirSteps steps)
    : program_{std::move(program)}, steps_{std::move(steps)} {}

tl::expected<void, Failure> Heirs::ask() {
  const std::lock_guard lock{mutex_};
  if (stopped_) return tl::unexpected(Failure{ESHUTDOWN, "the program ends"});
  const SuccessionRow* const row = running_ ? nullptr : succession_row(stage_, Turn::asked);
  if (row == nullptr) return tl::unexpected(Failure{EBUSY, "an upgrade is under way already"});
  trouble_ = steps_.why_not();
  if (!trouble_.empty()) {
    tell(rtrs::LogLevel::warning, "not replaced by the new program: " + trouble_);
    return tl::unexpected(Failure{EOPNOTSUPP, trouble_});
  }
  if (thread_.joinable()) thread_.join();
  try {
    thread_ = std::thread{[this] { run(); }};
  } catch (const std::system_error& error) {
    trouble_ = std::string{"there is no thread for that: "} + error.what();
    tell(rtrs::LogLevel::warning, "not replaced by the new program: " + trouble_);
    return tl::unexpected(Failure{EAGAIN, trouble_});
  }
  stage_ = row->to;  // its thread waits for the mutex first
  running_ = true;
  return {};
}

void Heirs::stop() {
  {
    const std::lock_guard lock{mutex_};
    stopped_ = true;
  }
  over_.wake();
  if (thread_.joinable()) thread_.join();
}

Heirs::Status Heirs::status() const {
  const std::lock_guard lock{mutex_};
  return {running_ && stage_ == Stage::serving ? Stage::offering : stage_, trouble_};
}

Step Heirs::take(Turn turn) {
  const std::lock_guard lock{mutex_};
  const SuccessionRow& row = *succession_row(stage_, turn);
  stage_ = row.to;
  return row.step;
}

void Heirs::run() {
  { const std::lock_guard asked{mutex_}; }
  Child child;
  Estate estate;
  const std::string why = replace(child, estate);
  child.end();
  switch (take(why.empty() ? Turn::stop : Turn::failed)) {
    case Step::resume:
      steps_.resume();
      break;
    case Step::take_back:
      steps_.take_back(std::move(estate));
      break;
    default:
      break;
  }
  const std::string trouble = why.empty() ? "the program ends" : why;
  tell(rtrs::LogLevel::warning, "not replaced by the new program: " + trouble);
  const std::lock_guard lock{mutex_};
  trouble_ = trouble;
  running_ = false;
}

bool Heirs::stopped() const {
  const std::lock_guard lock{mutex_};
  return stopped_;
}

/// A stop waits for nobody's handshake.
void Heirs::let_meet() {
  const auto until = steady_clock::now() + kTimeToMeet;
  while (!stopped() && steady_clock::now() < until)
    if (steps_.let_meet(std::min(until, steady_clock::now() + kMoment))) return;
}

/// Returns why the program was not replaced; "": stop() was called.
std::string Heirs::replace(Child& child, Estate& estate) {
  if (std::string wrong = child.start(program_); !wrong.empty()) return wrong;
  tell(rtrs::LogLevel::info,
       "process " + std::to_string(child.pid()) + " begins as the new program");
  const auto ready = child.await(HeirMessage::ready, kTimeToGetReady, over_.descriptor());
  if (!ready) return ready.error();
  if (ready->substr(0, ready->find(' ')) != std::to_string(estate_version()))
    return "the new program has another version of the record (" + on_one_line(*ready) + ")";
  take(Turn::ready);
  let_meet();
  if (stopped()) return "";
  const auto paused = steady_clock::now();
  if (std::string wrong = steps_.pause(steady_clock::now() + kTimeToPause); !wrong.empty())
    return wrong;
  take(Turn::still);
  if (std::string wrong = steps_.let_go(steady_clock::now() + kTimeToClose, estate); !wrong.empty())
    return wrong;
  if (!child.link().send_estate(estate)) return child.how_it_ended();
  const auto patience = kTimeToOpen + estate.clients.size() * kTimeToOpenOne;
  const auto serves = child.await(HeirMessage::serves, patience, over_.descriptor());
  if (!serves) return serves.error();
  // Nothing may be taken back behind this.
  if (!child.link().send(HeirMessage::go)) return child.how_it_ended();
  take(Turn::accepted);
  const auto waited =
      std::chrono::ceil<std::chrono::milliseconds>(steady_clock::now() - paused).count();
  tell(rtrs::LogLevel::info, "replaced by process " + std::to_string(child.pid()) +
                                 ", for which its clients have waited " + std::to_string(waited) +
                                 " ms");
  steps_.leave(child.pid());
  return "";
}

}  // namespace rnbd
