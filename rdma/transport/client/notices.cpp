// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/transport/client/notices.hpp"

#include <bit>
#include <cerrno>
#include <functional>
#include <sstream>
#include <string_view>
#include <system_error>
#include <utility>

#include "rdma/log_about.hpp"
#include "rdma/path_list.hpp"
#include "rdma/server_id.hpp"
#include "rdma/transport/resolve.hpp"
#include "rdma/wire/probe.hpp"

namespace rtrs {
namespace {

/// The severity of a line, and its relation to lines before.
enum class Voice : std::uint8_t {
  info,
  news,  ///< info, or a warning when readers have been told of trouble
  warning,
  trouble,  ///< a warning, the end of which will be reported in the same voice
  error,
};

struct Line {
  Notice::Kind kind;
  Voice voice;
  std::string_view event;  ///< for logs that programs search
  std::string_view text;
};

/// {session} is "session 'NAME'", {name} the path's, {why} the sentence of the cause. {path} names
/// the address as well, and nothing when there is one path only.
constexpr Line kLines[] = {
    {Notice::Kind::session_up, Voice::info, "session_up",
     "{session} is up: {depth} of {bytes} bytes, {lanes}"},
    {Notice::Kind::session_lost, Voice::error, "session_lost", "{session} is lost: {why}"},
    {Notice::Kind::session_renewed, Voice::info, "session_renewed",
     "{session}: {name} had forgotten it; a new one has taken its place"},

    {Notice::Kind::path_absent, Voice::trouble, "path_absent",
     "{session}: {path}{why}{waiting}; it is tried again until {timeout} s have passed "
     "(connect-timeout)"},
    {Notice::Kind::path_refused, Voice::trouble, "path_refused", "{session}: {path}{why}"},
    {Notice::Kind::path_unreachable, Voice::trouble, "path_unreachable",
     "{session}: path to {name}: {why}"},
    {Notice::Kind::path_up, Voice::news, "path_up", "{session}: path to {name} is up"},
    {Notice::Kind::path_lost, Voice::trouble, "path_lost",
     "{session}: path to {name} is lost: {why}"},
    {Notice::Kind::path_closed, Voice::info, "path_closed",
     "{session}: path to {name} is closed: {why}"},
    {Notice::Kind::path_removed, Voice::info, "path_removed",
     "{session}: path to {name} is removed"},
    {Notice::Kind::path_distrusted, Voice::warning, "path_distrusted",
     "{session}: path to {name} carries some connections only: it is not used for a while if "
     "another path works"},
    {Notice::Kind::path_silent, Voice::trouble, "path_silent",
     "{session}: path to {name} is silent for {time} s, {paths} answers: {moved} over "
     "{paths}, too"},
    {Notice::Kind::path_answers, Voice::trouble, "path_answers",
     "{session}: path to {name} answers again after {time} s"},
    {Notice::Kind::path_unsteady, Voice::warning, "path_unsteady",
     "{session}: path to {name} has fallen silent three times within 10 s: it is not used for a "
     "while if another path works"},
    {Notice::Kind::path_elsewhere, Voice::warning, "path_elsewhere",
     "{session}: path to {name} leads to another server, perhaps a clone, for the session's own "
     "answers: the session will not go on there, even if its other paths are lost; to trust that "
     "path again: {trust}"},
    {Notice::Kind::path_left, Voice::info, "path_left",
     "{name} still has a session that this client has left; it is told so"},
    {Notice::Kind::path_better, Voice::news, "path_better",
     "{session}: the server calls the path to {name} {access}"},
    {Notice::Kind::path_worse, Voice::trouble, "path_worse",
     "{session}: the server calls the path to {name} {access}"},

    {Notice::Kind::paths_in_use, Voice::news, "paths_in_use", "{session}: I/O goes over {paths}"},
    {Notice::Kind::paths_inaccessible, Voice::warning, "paths_inaccessible",
     "{session}: the server lets no path carry I/O: requests wait for one"},

    {Notice::Kind::requests_fail, Voice::error, "requests_fail",
     "{session}: no path for too long (no-path-timeout): requests fail until one is back"},
    {Notice::Kind::requests_inaccessible, Voice::error, "requests_inaccessible",
     "{session}: no accessible path for too long (no-path-timeout): requests fail until one is "
     "back"},
    {Notice::Kind::requests_overdue, Voice::error, "requests_overdue",
     "{session}: paths have carried some requests in vain for too long (no-path-timeout): these "
     "fail; does the server hang, or is an MTU on the way too small for large ones?"},
    {Notice::Kind::writes_fail, Voice::error, "writes_fail",
     "{session}: the server may still carry out changes that it got from {name} "
     "(no-path-timeout): changes fail until that path is back"},
    {Notice::Kind::opens_fail, Voice::error, "opens_fail",
     "{session}: the server may still carry out a CLOSE, or a change that was given up, that it "
     "got from {name} (no-path-timeout): no device can be opened until that path is back"},
    {Notice::Kind::opens_wait, Voice::warning, "opens_wait",
     "{session}: who opens or closes a device waits until the server has ended changes that it "
     "has not answered: their callers have left, or their path is lost; look at its storage and "
     "paths"},
    {Notice::Kind::opens_go_on, Voice::warning, "opens_go_on",
     "{session}: devices can be opened again"},
    {Notice::Kind::writes_wait, Voice::warning, "writes_wait",
     "{session}: changes of a device wait until the server has ended an older one of it, whose "
     "caller has left or was told that it failed; look at the server's storage"},
};

struct Reason {
  Cause::Kind kind;
  int error;  ///< 0: that of the cause
  std::string_view text;
};

constexpr Reason kReasons[] = {
    {Cause::Kind::none, 0, ""},
    {Cause::Kind::transport, 0, "{text}"},
    {Cause::Kind::unresponsive, EIO,
     "{name}: a connection that owes answers carries nothing, not even a heartbeat's; if others "
     "live, look for an MTU on the way that is too small for large requests"},
    {Cause::Kind::other_session, ESTALE,
     "{name}: it has another session than the other paths (another server, or it was restarted a "
     "moment ago)"},
    {Cause::Kind::other_server, ESTALE, "{name}: {another server}"},
    {Cause::Kind::older_server, ESTALE,
     "{name}: its records are older than this session, as a clone's of the server or one's that "
     "was "
     "set back: requests wait for the right server; to give up what is open and go on there: "
     "{trust}"},
    {Cause::Kind::no_extension, EPROTO,
     "{name}: it cannot promise that a request is carried out once, which require-ext demands"},
    {Cause::Kind::no_permit, EAGAIN,
     "{name}: the server may still have all that came over the lost paths"},
    {Cause::Kind::not_reopened, 0,
     "{name}: what was open there cannot be opened again now: {errno}"},
    {Cause::Kind::disconnected, ECONNABORTED, "disconnected by command"},
    {Cause::Kind::removed, ECONNABORTED, "removed by command"},
    {Cause::Kind::closed, ESHUTDOWN, "the session was closed"},
    {Cause::Kind::forgotten, EIO, "{name} has forgotten the session"},
    {Cause::Kind::other_contents, ESTALE, "{name} shows something else than before"},
    {Cause::Kind::other_limits, ESTALE,
     "{name} came back with other limits ({shortage}); those who have something open get EIO "
     "until they open it anew"},
};

/// The tables have a row for each kind, in the order of the kinds.
template <class Row, std::size_t kCount>
constexpr bool is_complete(const Row (&rows)[kCount], decltype(Row::kind) last) {
  for (std::size_t i = 0; i < kCount; ++i) {
    if (static_cast<std::size_t>(rows[i].kind) != i) return false;
  }
  return rows[kCount - 1].kind == last;
}
static_assert(is_complete(kLines, Notice::Kind::writes_wait));
static_assert(is_complete(kReasons, Cause::Kind::other_limits));

/// "queue depth 16, which was 256": what a server has less of than before.
std::string shortage(const wire::AcceptParameters& had, const wire::AcceptParameters& has) {
  std::string text;
  const auto add = [&](const std::string& what) { text += (text.empty() ? "" : ", ") + what; };
  const auto compare = [&](const char* what, std::uint64_t before, std::uint64_t now) {
    if (now < before) add(what + std::to_string(now) + ", which was " + std::to_string(before));
  };
  compare("queue depth ", had.queue_depth, has.queue_depth);
  compare("request size ", had.max_io_size, has.max_io_size);
  if (wire::agreed_features(has.extension.features) !=
      wire::agreed_features(had.extension.features))
    add("other features");
  return text;
}

std::string seconds(Duration duration) {
  std::ostringstream text;
  text << std::chrono::duration<double>{duration}.count();
  return text.str();
}

/// "0.3", of seconds.
std::string tenths(Duration duration) {
  const auto count = std::chrono::round<std::chrono::milliseconds>(duration).count() / 100;
  return std::to_string(count / 10) + "." + std::to_string(count % 10);
}

/// The text with each {word} replaced by its value.
std::string fill(std::string_view text,
                 const std::function<std::string(std::string_view)>& value_of) {
  std::string filled;
  while (!text.empty()) {
    const std::size_t begin = text.find('{');
    filled += text.substr(0, begin);
    if (begin == std::string_view::npos) break;
    const std::size_t end = text.find('}', begin);
    filled += value_of(text.substr(begin + 1, end - begin - 1));
    text.remove_prefix(end + 1);
  }
  return filled;
}

std::string counted(std::uint64_t number, const char* what) {
  return std::to_string(number) + " " + what + (number == 1 ? "" : "s");
}

/// The line names one.
bool is_about_path(std::string_view text) {
  return text.find("{name}") != text.npos || text.find("{path}") != text.npos;
}

/// Null: the notice is not about the state of a path.
const char* state_of_path(Notice::Kind kind) {
  switch (kind) {
    case Notice::Kind::path_up:
      return "up";
    case Notice::Kind::path_lost:
      return "lost";
    case Notice::Kind::path_closed:
      return "closed";
    case Notice::Kind::path_removed:
      return "removed";
    default:
      return nullptr;
  }
}

}  // namespace

std::string ClientNotices::name_of_path(unsigned path) const {
  return path < options_.paths.size() ? name_of(options_.paths[path]) : "";
}

std::string ClientNotices::address_of(unsigned path) const {
  return path < options_.paths.size() ? to_string(options_.paths[path]) : "";
}

std::string ClientNotices::names_of(PathMask paths) const {
  std::string names;
  for (unsigned i = 0; i < kMaxPaths; ++i) {
    if ((paths >> i & 1) != 0) names += (names.empty() ? "" : ", ") + name_of_path(i);
  }
  return names;
}

std::string ClientNotices::name_of_session() const {
  return "session '" + options_.session_name + "'";
}

void ClientNotices::log(LogLevel level, const std::string& text) const {
  if (options_.log) options_.log(level, text);
}

// ---- For callers -------------------------------------------------------------------------------

Failure ClientNotices::failure_of(const Cause& cause) const {
  const Reason& reason = kReasons[static_cast<std::size_t>(cause.kind)];
  const auto value_of = [&](std::string_view word) -> std::string {
    if (word == "name") return name_of_path(cause.path);
    if (word == "text") return cause.text;
    if (word == "errno") return std::generic_category().message(cause.error);
    if (word == "shortage") return shortage(cause.had, cause.has);
    if (word == "trust") return options_.words->trust_path;
    return another_server(cause.server, cause.wanted);
  };
  return {reason.error != 0 ? reason.error : cause.error, fill(reason.text, value_of)};
}

std::string ClientNotices::timed_out(unsigned path) const {
  return "timed out while connecting to " + name_of_path(path) +
         " (is the address right, does a firewall drop packets, does the server hang?)";
}

std::string ClientNotices::led_elsewhere() const {
  return std::string{
             "it led to another server, perhaps a clone, while the session's own answered: it "
             "waits "
             "for that one; to trust it again: "} +
         options_.words->trust_path;
}

std::string ClientNotices::waits_for_others() const {
  return std::string{
             "waits for a session that it can join: nothing tells yet whether it leads to the same "
             "server"} +
         options_.words->server_id_tells;
}

/// The paths that have not been tried, for readers who count on them.
std::string ClientNotices::waiting_paths(PathMask paths) const {
  if (paths == 0) return "";
  return "; " + names_of(paths) +
         " may join its session only, since nothing else tells that it is the same server" +
         options_.words->server_id_tells;
}

Failure ClientNotices::too_late(const Lateness& lateness) const {
  Failure failure = failure_of(lateness.absent);
  const auto add = [&](int error, const char* link, const std::string& text) {
    if (failure.error == 0) failure.error = error;
    failure.text += (failure.text.empty() ? "" : link) + text;
  };
  if (lateness.connecting != 0) {
    const auto first = static_cast<unsigned>(std::countr_zero(lateness.connecting));
    add(ETIMEDOUT, "; then ", timed_out(first));
  }
  const Failure foreign = failure_of(lateness.foreign);
  if (!foreign.text.empty()) add(foreign.error, "; and ", foreign.text);
  if (failure.text.empty()) add(ETIMEDOUT, "", "the path that names the server is disconnected");
  failure.text += waiting_paths(lateness.waiting);
  return failure;
}

// ---- For the log -------------------------------------------------------------------------------

void ClientNotices::trace_state(const Notice& notice) const {
  [[maybe_unused]] const char* state = state_of_path(notice.kind);
  if (state == nullptr) return;
  [[maybe_unused]] const std::string path = name_of_path(notice.path);
  RTRS_PROBE(rtrs, path_state, options_.session_name.c_str(), path.c_str(), state);
}

void ClientNotices::report(const Notice& notice, Instant now) {
  trace_state(notice);
  const Line& line = kLines[static_cast<std::size_t>(notice.kind)];
  if (line.voice == Voice::trouble) troubled_ = true;
  if (is_repeated(notice, now)) return;
  const auto value_of = [&](std::string_view word) -> std::string {
    if (word == "session") return name_of_session();
    if (word == "name") return name_of_path(notice.path);
    if (word == "path") return name_among_paths(notice.path);
    if (word == "why") return failure_of(notice.cause).text;
    if (word == "access") return to_string(notice.access);
    if (word == "paths") return names_of(notice.paths);
    if (word == "waiting") return waiting_paths(notice.paths);
    if (word == "trust") return options_.words->trust_path;
    if (word == "time") return tenths(notice.time);
    if (word == "timeout") return seconds(options_.connect_timeout);
    if (word == "depth") return counted(notice.limits.queue_depth, "request");
    if (word == "lanes") return counted(notice.count, "lane");
    if (word == "moved") {
      return counted(notice.count, "request") + (notice.count == 1 ? " goes" : " go");
    }
    if (word == "bytes") return std::to_string(notice.limits.max_io_size);
    return std::to_string(notice.count);
  };
  constexpr auto kInfo = LogLevel::info;
  constexpr auto kWarning = LogLevel::warning;
  const LogLevel levels[] = {kInfo, troubled_ ? kWarning : kInfo, kWarning, kWarning,
                             LogLevel::error};
  const std::string path = is_about_path(line.text) ? address_of(notice.path) : "";
  const LogAbout about{{.event = line.event,
                        .session = options_.session_name,
                        .path = path,
                        .error = notice.cause.error}};
  log(levels[static_cast<std::size_t>(line.voice)], fill(line.text, value_of));
}

std::string ClientNotices::name_among_paths(unsigned path) const {
  return has_one_path() ? "" : "path " + to_string(options_.paths[path]) + ": ";
}

/// Readers know it already. The refusal of an only path is the session's failure.
bool ClientNotices::is_repeated(const Notice& notice, Instant now) {
  constexpr Duration kPause = std::chrono::minutes{1};
  switch (notice.kind) {
    case Notice::Kind::path_up:
      forget(notice.path);
      return false;
    case Notice::Kind::path_refused:
      return std::exchange(unreachable_reported_[notice.path], true) || has_one_path();
    case Notice::Kind::path_absent:
    case Notice::Kind::path_unreachable:
      return std::exchange(unreachable_reported_[notice.path], true);
    case Notice::Kind::path_distrusted:
    case Notice::Kind::paths_in_use:
      return has_one_path();
    case Notice::Kind::requests_overdue:
      if (overdue_reported_ && now - *overdue_reported_ < kPause) return true;
      overdue_reported_ = now;
      return false;
    default:
      return false;
  }
}

}  // namespace rtrs
