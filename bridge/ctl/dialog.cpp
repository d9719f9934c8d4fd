// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/ctl/dialog.hpp"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "bridge/control/unix_socket.hpp"
#include "rdma/owned_fd.hpp"

namespace rnbd {
namespace {

constexpr std::size_t kLongestAnswer = 16 << 20;
constexpr std::size_t kDeepestAnswer = 64;  ///< brackets in brackets: printing recurses

tl::unexpected<CtlTrouble> trouble(int error, std::string text = "") {
  if (text.empty()) text = strerrordesc_np(error);
  if (error == EAGAIN) text = "the program does not answer; does it hang?";
  return tl::unexpected(CtlTrouble{error, std::move(text)});
}

bool is_socket(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && S_ISSOCK(status.st_mode);
}

/// A file that is no socket gives ECONNREFUSED, too.
std::string advice_on(int error, const std::string& path) {
  const std::string text = strerrordesc_np(error);
  if (error == ENOENT) return text + "; was the program started with a control socket there?";
  if (error == EACCES) {
    return text + "; root may do everything, members of the group rnbd may look at a server";
  }
  if (error != ECONNREFUSED) return "";
  return is_socket(path) ? text + "; the program that made it has ended"
                         : "this is no socket; name what the program was given as --control or "
                           "control=";
}

/// 0 or an errno.
int connect_to(int fd, const std::string& path, std::chrono::seconds patience) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size());
  const timeval limit{patience.count(), 0};
  ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
  return ::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 ? 0
                                                                                          : errno;
}

/// 0 or an errno. A refusal has its reason in the answer.
int send_line(int fd, const std::string& line) {
  for (std::size_t sent = 0; sent < line.size();) {
    const ssize_t n = ::send(fd, line.data() + sent, line.size() - sent, MSG_NOSIGNAL);
    if (n < 0) return errno == EPIPE ? 0 : errno;
    sent += static_cast<std::size_t>(n);
  }
  return 0;
}

bool is_too_deep(const std::string& json) {
  std::size_t depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (in_string && c == '\\') {
      ++i;
    } else if (c == '"') {
      in_string = !in_string;
    } else if (!in_string && (c == '[' || c == '{')) {
      if (++depth > kDeepestAnswer) return true;
    } else if (!in_string && (c == ']' || c == '}') && depth > 0) {
      --depth;
    }
  }
  return false;
}

bool is_list_of_objects(const CtlJson& value) {
  return value.is_array() &&
         std::ranges::all_of(value, [](const CtlJson& each) { return each.is_object(); });
}

}  // namespace

CtlJson parse_answer(const std::string& answer) {
  if (is_too_deep(answer)) return nullptr;
  CtlJson json = CtlJson::parse(answer, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return nullptr;
  for (const char* list : {"devices", "disks", "paths", "sessions", "exports"}) {
    const auto found = json.find(list);
    if (found != json.end() && !is_list_of_objects(*found)) return nullptr;
  }
  return json;
}

std::string message_of(const CtlJson& answer) {
  return said(answer, "message").is_string() ? said_text(answer, "message") : "it failed";
}

CtlJson said(const CtlJson& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() ? *found : CtlJson{};
}

std::string said_text(const CtlJson& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

std::uint64_t said_number(const CtlJson& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_number_unsigned() ? found->get<std::uint64_t>() : 0;
}

const CtlJson& said_list(const CtlJson& object, const char* name) {
  static const CtlJson none = CtlJson::array();
  const auto found = object.find(name);
  return found != object.end() && found->is_array() ? *found : none;
}

tl::expected<std::string, CtlTrouble> ask_control_socket(const std::string& path, std::string line,
                                                         std::chrono::seconds patience) {
  if (std::string wrong = complaint_about_socket_path(path); !wrong.empty()) {
    return trouble(EINVAL, wrong);
  }
  const rtrs::OwnedFd fd{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  if (fd.get() < 0) return trouble(errno);
  if (const int error = connect_to(fd.get(), path, patience); error != 0) {
    return trouble(error, advice_on(error, path));
  }
  line += '\n';
  if (const int error = send_line(fd.get(), line); error != 0) return trouble(error);
  std::string answer;
  for (char buffer[4096]; !answer.ends_with('\n') && answer.size() < kLongestAnswer;) {
    const ssize_t n = ::recv(fd.get(), buffer, sizeof(buffer), 0);
    if (n < 0) return trouble(errno);
    if (n == 0) return trouble(EPIPE, "the program hung up");
    answer.append(buffer, static_cast<std::size_t>(n));
  }
  answer.pop_back();
  return answer;
}

}  // namespace rnbd
