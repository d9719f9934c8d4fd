// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/client/mirror/member_link.hpp"

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <utility>

#include "rdma/log_about.hpp"
#include "rdma/path_list.hpp"

namespace rnbd::mirror {
namespace {

constexpr std::chrono::milliseconds kLeastPause{100};  // between attempts; each is twice as long
/// After a session of at least this length, the next attempt begins soon.
constexpr std::chrono::seconds kSteady{2};
constexpr std::size_t kMostReasons = 16;  // that are told while a member is away

rtrs::Log with_name(const rtrs::Log& log, const ClientConfig& config) {
  if (!log) return log;
  return [log, name = host_and_port(config.paths.front())](rtrs::LogLevel level,
                                                           const std::string& text) {
    log(level, "member " + name + ": " + text);
  };
}

}  // namespace

MemberLink::MemberLink(ClientConfig config, rtrs::Log log, OnOpen on_open, Place place,
                       MemberRole role)
    : log_{std::move(log)},
      on_open_{std::move(on_open)},
      place_{std::move(place)},
      role_{role},
      config_{std::make_shared<const ClientConfig>(std::move(config))},
      pause_{kLeastPause} {}

MemberLink::~MemberLink() {
  if (thread_.joinable()) thread_.join();
}

void MemberLink::start() {
  thread_ = std::thread{[this] { run(); }};
}

void MemberLink::renew(std::shared_ptr<OpenMember> before, Clock::duration wait) {
  const std::lock_guard lock{mutex_};
  place_.leave();
  if (before != nullptr) ended_.push_back(std::move(before));
  if (Clock::now() - opened_ > kSteady) pause_ = kLeastPause;
  not_before_ = Clock::now() + wait;
  wanted_ = true;
  changed_.notify_all();
}

void MemberLink::hurry() {
  const std::lock_guard lock{mutex_};
  not_before_ = {};
  changed_.notify_all();
}

void MemberLink::let_go(std::shared_ptr<OpenMember> before) {
  const std::lock_guard lock{mutex_};
  if (before != nullptr) ended_.push_back(std::move(before));
  wanted_ = false;
  used_ = false;
  place_.leave();
  changed_.notify_all();
}

void MemberLink::give_back(std::shared_ptr<OpenMember> open) {
  const std::lock_guard lock{mutex_};
  open.reset();
  changed_.notify_all();
}

void MemberLink::go_to(const rtrs::PathAddress& path) {
  const std::lock_guard lock{mutex_};
  auto config = std::make_shared<ClientConfig>(*config_);
  config->paths = {path};
  config_ = std::move(config);
  trouble_.clear();
  told_.clear();
  pause_ = kLeastPause;
  not_before_ = {};
  wanted_ = true;
  used_ = false;
  place_.leave();
  changed_.notify_all();
}

std::shared_ptr<const ClientConfig> MemberLink::config() const {
  const std::lock_guard lock{mutex_};
  return config_;
}

std::string MemberLink::server() const { return host_and_port(config()->paths.front()); }

void MemberLink::leave(std::shared_ptr<OpenMember> last) {
  {
    const std::lock_guard lock{mutex_};
    if (last != nullptr) ended_.push_back(std::move(last));
    leaving_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

bool MemberLink::is_used() const {
  const std::lock_guard lock{mutex_};
  return used_;
}

std::string MemberLink::trouble() const {
  const std::lock_guard lock{mutex_};
  return trouble_;
}

void MemberLink::set_trouble(const std::string& trouble) {
  const std::lock_guard lock{mutex_};
  if (trouble == trouble_) return;
  trouble_ = trouble;
  if (trouble.empty()) told_.clear();
  if (!log_) return;
  const rtrs::Log say = with_name(log_, *config_);
  if (!trouble.empty()) {
    // They may come in turn. A reason with a number in it could be another one each time.
    const bool news = told_.size() < kMostReasons && told_.insert(trouble).second;
    if (news) say(rtrs::LogLevel::warning, trouble);
    return;
  }
  if (quiet_ == nullptr || !quiet_->exchange(false)) return;
  const std::string path = rtrs::to_string(config_->paths.front());
  const rtrs::LogAbout about{{.event = "path_up", .path = path}};
  say(rtrs::LogLevel::warning, "path to " + host_and_port(config_->paths.front()) + " is up");
}

/// A session that a failed attempt made, or that cannot be a member, is one of many.
rtrs::Log MemberLink::log_of_attempt(const ClientConfig& config, Quiet quiet) const {
  const rtrs::Log log = with_name(log_, config);
  if (!log) return log;
  return [log, quiet = std::move(quiet)](rtrs::LogLevel level, const std::string& text) {
    if (!*quiet) log(level, text);
  };
}

SessionStatus MemberLink::status() const {
  std::shared_ptr<SharedSession> shared;
  {
    const std::lock_guard lock{mutex_};
    shared = shared_;
  }
  return shared != nullptr ? shared->status() : SessionStatus{};
}

/// The server that it tries to reach is not wanted any more.
bool MemberLink::is_in_vain(void* context) {
  auto& self = *static_cast<MemberLink*>(context);
  const std::lock_guard lock{self.mutex_};
  return self.leaving_ || !self.wanted_ || self.config_ != self.tried_;
}

/// The session before has ended then.
bool MemberLink::is_due() const { return wanted_ && ended_.empty() && Clock::now() >= not_before_; }

/// Sessions that nobody shares any more.
std::vector<std::shared_ptr<OpenMember>> MemberLink::take_unused() {
  const auto is_shared = [](const std::shared_ptr<OpenMember>& open) {
    return open.use_count() > 1;
  };
  const auto unused = std::partition(ended_.begin(), ended_.end(), is_shared);
  std::vector<std::shared_ptr<OpenMember>> taken(std::make_move_iterator(unused),
                                                 std::make_move_iterator(ended_.end()));
  ended_.erase(unused, ended_.end());
  return taken;
}

void MemberLink::run() {
  std::unique_lock lock{mutex_};
  for (;;) {
    std::vector<std::shared_ptr<OpenMember>> ended = take_unused();
    while (!is_due() && !(leaving_ && ended_.empty()) && ended.empty()) {
      if (wanted_ && ended_.empty())
        changed_.wait_until(lock, not_before_);
      else
        changed_.wait(lock);
      ended = take_unused();
    }
    const bool connects = is_due() && !leaving_;
    const bool leaves = leaving_ && ended_.empty();
    lock.unlock();
    for (auto& member : ended) member->shared->leave();
    ended.clear();
    if (leaves) {
      if (shared_ != nullptr) shared_->leave();  // what it opened may not have arrived yet
      return;
    }
    auto opened = connects ? connect() : nullptr;
    lock.lock();
    if (opened != nullptr) {
      wanted_ = false;
      opened_ = Clock::now();
      lock.unlock();
      on_open_(std::move(opened));
      lock.lock();
    }
    if (!connects) continue;
    changed_.wait_for(lock, pause_, [this] { return leaving_ || config_ != tried_; });
    pause_ = std::min<rtrs::Duration>(2 * pause_, config_->reconnect_max);
  }
}

/// Null: why not is in trouble_.
std::shared_ptr<OpenMember> MemberLink::connect() {
  const rtrs::Interrupt interrupt{&MemberLink::is_in_vain, this};
  auto member = std::make_shared<OpenMember>();
  member->link = this;
  const auto fail = [&](const std::string& why) {
    if (!interrupt()) set_trouble(why);
    place_.leave();
    member->shared->leave();  // there may be no other attempt
    return nullptr;
  };
  member->config = config();
  const ClientConfig& config = *member->config;
  const auto quiet = std::make_shared<std::atomic<bool>>(!trouble().empty());
  member->shared = std::make_shared<SharedSession>(config, log_of_attempt(config, quiet));
  {
    const std::lock_guard lock{mutex_};
    tried_ = member->config;
    shared_ = member->shared;
    quiet_ = quiet;
  }
  auto session = member->shared->get(interrupt);
  if (!session) return set_used(false), fail(session.error().text);
  member->session = *session;
  const auto refuse = [&](const std::string& twin) {
    set_used(false);
    return fail("it is the same server as " + twin +
                (role_.kind == wire::MemberKind::vote
                     ? ", whose loss the vote would not outlive; name another one"
                     : ", where it would have the same copy; name each server once, by one "
                       "address"));
  };
  const std::string twin = twin_at(*member->session, ServerTable::Stage::opening);
  if (!twin.empty()) return refuse(twin);
  OpenOptions options;
  options.geometry = config.geometry;
  options.access = config.access.value_or(options.access);
  set_used(true);
  auto device = member->session->open(config.device, options, interrupt);
  set_used(!device && device.error().error == EPERM &&
           !member->session->directory().who(config.device, interrupt).refused);
  if (!device && device.error().error == ENOENT && role_.kind == wire::MemberKind::vote)
    return fail(
        "its rnbd-server has no votes for this client; start it with --votes on, or let "
        "this client have them, as its log says");
  if (!device) return fail(device.error().text);
  member->device = *std::move(device);
  const std::string wrong = complaint(*member);
  if (!wrong.empty()) return fail(wrong);
  const std::string open_twin = twin_at(*member->session, ServerTable::Stage::open);
  if (!open_twin.empty()) return refuse(open_twin);
  return member;
}

/// Another member at the same server; "": there is none. One that is not wanted enters nothing.
std::string MemberLink::twin_at(Session& session, ServerTable::Stage stage) {
  {
    const std::lock_guard lock{mutex_};
    if (!wanted_ || config_ != tried_) return "";
  }
  return place_.enter(session.client().server_id(), stage);
}

/// Nobody asks any more who uses a server that is not wanted.
void MemberLink::set_used(bool used) {
  const std::lock_guard lock{mutex_};
  used_ = used && wanted_;
}

/// "", or why it cannot be a member.
std::string MemberLink::complaint(const OpenMember& member) const {
  const std::uint32_t features = member.session->client().limits().features;
  if ((features & rtrs::wire::kFeatureExactlyOnce) == 0)
    return "a Linux server cannot be a member of a mirror: a write that is late may undo a newer "
           "one there; use rnbd-server";
  if ((features & role_.features) != role_.features)
    return (role_.features & ~features) == wire::kFeatureMirrorVotes
               ? "its rnbd-server is too old for a mirror with a vote; install a newer one"
               : "its rnbd-server is too old to be a member of a mirror; install a newer one";
  if (member.device->read_only() && role_.kind == wire::MemberKind::disk)
    return "its export is read-only, which no member of a mirror can be; export it for writing";
  return "";
}

}  // namespace rnbd::mirror
