// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/kernel/face.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "bridge/protocol/printable.hpp"
#include "bridge/protocol/uuid.hpp"
#include "rdma/log_about.hpp"

namespace rnbd::kernel {
namespace {

using rtrs::Failure;

/// Between two attempts to open the device.
constexpr std::chrono::milliseconds kAgain{250};
/// A server that does not tell a size by then does not answer.
constexpr std::chrono::seconds kTimeToAsk{1};
/// The kernel needs a moment to see that a process has died.
constexpr std::chrono::seconds kFuneral{5};
/// KiB of a request; the kernel's own limit.
constexpr std::uint64_t kMostSectorsKb = 32768;
constexpr std::uint64_t kSector = 512;

bool peer_has_gone(int socket) {
  pollfd descriptor{socket, POLLRDHUP, 0};
  return ::poll(&descriptor, 1, 0) > 0 && (descriptor.revents & (POLLRDHUP | POLLHUP)) != 0;
}

Failure busy(const std::string& device) {
  return {EBUSY, device +
                     " is served by another process under this name: end that one first, or "
                     "choose another --map-name"};
}

}  // namespace

Face::Face(nbd::Exports& exports, nbd::Front& front, FaceOptions options,
           const std::optional<Kept>& kept)
    : exports_{exports}, front_{front}, options_{std::move(options)} {
  if (kept) predecessor_ = {rtrs::OwnedFd{kept->socket}, take_left_behind(kept->state)};
  identity_.name = options_.name;
  device_.index = options_.index;
  device_.dead_timeout = static_cast<std::uint64_t>(options_.dead_timeout.count());
}

void Face::say(rtrs::LogLevel level, const std::string& text) const {
  const rtrs::LogAbout about{{.event = "kernel_disk", .device = options_.name}};
  if (options_.log) options_.log(level, options_.name + ": " + text);
}

/// True if this text differs from the last one.
bool Face::once(const std::string& text) { return std::exchange(said_, text) != text; }

std::string Face::device() const { return "/dev/nbd" + std::to_string(device_.index.value_or(0)); }

tl::expected<void, Failure> Face::attempt(std::chrono::milliseconds patience) {
  until_ = std::chrono::steady_clock::now() + patience;
  waits_for_server_ = false;
  auto netlink = Netlink::open();
  if (!netlink) return tl::unexpected(netlink.error());
  netlink_ = *std::move(netlink);
  auto done = map();
  netlink_.reset();
  if (done) observe();
  return done;
}

tl::expected<void, Failure> Face::map() {
  if (attachment_.on(Event::link_lost) != nullptr) {
    say(rtrs::LogLevel::warning, device() + " has lost its socket and gets another one");
  }
  observer_ = {};
  if (auto claimed = claim_mapped(); !claimed) return claimed;
  if (predecessor_) {
    auto resumed = resume();
    if (!resumed) return tl::unexpected(resumed.error());
    if (*resumed) return {};
  }
  return join();
}

bool Face::is_over() const { return leaving_.load() || std::chrono::steady_clock::now() >= until_; }

// ---- The server's side --------------------------------------------------------------------------

void Face::set_identity(const Disk& device) {
  const std::string uuid = uuid_text(device.geometry().export_uuid);
  identity_.disk = uuid.empty() ? options_.server + "/" + device.name() : uuid;
  identity_.size = uuid.empty() ? device.geometry().size : 0;
}

/// To the server, a bridge that has died may still be writing. Until it knows better, it refuses
/// this one, or lets it only read.
bool Face::fits(const nbd::Lease& device, const Mapped& mapped) const {
  const bool other = kinship(identity_, mapped.backend) == Kinship::other;  // which is told soon
  return other || !device->read_only() || sysfs_.read_only(mapped.index);
}

tl::expected<nbd::Lease, Failure> Face::open_device() {
  const Interrupt interrupt{[](void* self) { return static_cast<Face*>(self)->is_over(); }, this};
  for (;;) {
    auto opened = exports_.open("", interrupt);
    if (opened) set_identity(**opened);
    const auto mapped = find_by_name();
    if (opened && (!mapped || fits(*opened, *mapped))) return opened;
    waits_for_server_ = mapped.has_value();
    if (!mapped) return opened;
    const Failure why = opened ? Failure{EBUSY, "another client writes to it"} : opened.error();
    if (why.error != EINTR && once(why.text))
      say(rtrs::LogLevel::warning, device_of(*mapped) + " waits for its server: " + why.text);
    if (!pause(kAgain)) return tl::unexpected(why);
  }
}

// ---- The kernel's side --------------------------------------------------------------------------

std::string Face::device_of(const Mapped& mapped) {
  return "/dev/nbd" + std::to_string(mapped.index);
}

/// Of any disk.
std::optional<Mapped> Face::find_by_name() const {
  const auto all = sysfs_.mapped();
  const auto found = std::ranges::find_if(all, [this](const Mapped& one) {
    return kinship(identity_, one.backend) != Kinship::stranger;
  });
  return found != all.end() ? std::optional{*found} : std::nullopt;
}

/// False: another process serves the device.
bool Face::lock(unsigned index) {
  const int fd = sysfs_.lock(index);
  if (fd < 0) return errno != EWOULDBLOCK;
  lock_ = rtrs::OwnedFd{fd};
  return true;
}

/// The kernel may need a moment to end a process that has died.
tl::expected<void, Failure> Face::claim_mapped() {
  if (lock_) return {};
  const auto until = std::chrono::steady_clock::now() + kFuneral;
  for (;;) {
    const auto mapped = find_by_name();
    if (!mapped || lock(mapped->index)) return {};
    const bool late = std::chrono::steady_clock::now() > until;
    if (late || !pause(kAgain)) return tl::unexpected(busy(device_of(*mapped)));
  }
}

/// Opens the device at the server and gives it to the kernel, as a new device or in place of a dead
/// bridge.
tl::expected<void, Failure> Face::join() {
  const auto until = std::chrono::steady_clock::now() + kFuneral;
  for (;;) {
    auto opened = open_device();
    if (!opened) return tl::unexpected(opened.error());
    const Event found = what_is_there();
    if (mapped_ && found == Event::found_none) {
      return tl::unexpected(Failure{ENODEV, device() + " is not mapped any more"});
    }
    const Row* const row = attachment_.on(found);
    if (row == nullptr || row->action != Action::tell) return tl::unexpected(another_disk());
    auto joined = offer(*row, *std::move(opened));
    attachment_.on(joined && *joined ? Event::joined : Event::refused);
    if (!joined) return tl::unexpected(joined.error());
    mapped_ = mapped_ || *joined;
    if (*joined) return {};
    if (std::chrono::steady_clock::now() > until) return tl::unexpected(busy(device()));
    if (!pause(kAgain)) return tl::unexpected(busy(device()));
  }
}

/// Fills in the message to the kernel.
Event Face::what_is_there() {
  const auto mapped = find_by_name();
  device_.identifier = mapped ? mapped->backend : text_of(identity_);
  if (!mapped) return Event::found_none;
  device_.index = mapped->index;
  return kinship(identity_, mapped->backend) == Kinship::same ? Event::found_own
                                                              : Event::found_other;
}

Failure Face::another_disk() const {
  return {ESTALE, device() + " is mapped under the name " + in_quotes(options_.name) +
                      ", but is another disk (" + in_quotes(device_.identifier) + ", and this is " +
                      in_quotes(text_of(identity_)) +
                      "): unmap that one first, or choose another "
                      "--map-name"};
}

/// False: the kernel has a living socket, and has refused this one.
tl::expected<bool, Failure> Face::offer(const Row& row, nbd::Lease device) {
  std::array<int, 2> pair{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair.data()) != 0) {
    return tl::unexpected(Failure{errno, std::string{"socketpair: "} + std::strerror(errno)});
  }
  rtrs::OwnedFd ours{pair[0]};
  rtrs::OwnedFd kernels{pair[1]};
  const rtrs::OwnedFd look{::dup(pair[0])};
  device_.flags = exports_.flags(*device, nbd::Framing::simple);
  device_.size = device->geometry().size;
  watched_ = std::make_shared<nbd::Watched>();
  // Serve from now on, because the kernel reads the partition table before it answers.
  if (!front_.adopt(ours.get(),
                    {.device = std::move(device), .flags = device_.flags, .watched = watched_})) {
    return tl::unexpected(Failure{ESHUTDOWN, "the bridge ends"});
  }
  ours.release();
  device_.sockets = {kernels.get()};
  auto index = netlink_->send(message_of(*row.message, device_));
  device_.sockets.clear();
  kernels.reset();
  if (!index) return tl::unexpected(index.error());
  device_.index = *index;
  if (row.message->command == Command::connect) {
    set_queue();
    lock(*index);
  }
  return !peer_has_gone(look.get());
}

/// Only now is it safe: later the queue may hang.
void Face::set_queue() {
  const auto set = [this](const char* attribute, const std::string& value) {
    auto done = sysfs_.set_queue(*device_.index, attribute, value);
    if (!done) say(rtrs::LogLevel::warning, done.error().text);
  };
  set("io_timeout", std::to_string(options_.retry.count()));
  const std::uint64_t most = sysfs_.queue(*device_.index, "max_hw_sectors_kb");
  if (most != 0) set("max_sectors_kb", std::to_string(std::min(most, kMostSectorsKb)));
  set("scheduler", "none");
}

// ---- The successor ------------------------------------------------------------------------------

/// False: its socket is dead, and the kernel needs a new one. A failure: it is kept for the next
/// attempt.
tl::expected<bool, Failure> Face::resume() {
  const auto& left = predecessor_->left;
  const auto mapped = find_by_name();
  const int socket = predecessor_->socket.get();
  const bool known = left && mapped && mapped->index == left->index &&
                     mapped->backend == left->identifier && !peer_has_gone(socket);
  auto opened = known ? open_device() : tl::unexpected(Failure{ENODEV, ""});
  if (known && !opened && waits_for_server_) return tl::unexpected(opened.error());
  Predecessor old = *std::exchange(predecessor_, std::nullopt);
  if (!opened || what_is_there() != Event::found_own) {
    say(rtrs::LogLevel::warning,
        "what the predecessor has left is of no use; the kernel gets another socket");
    ::shutdown(socket, SHUT_RDWR);  // others may have it, too
    return false;
  }
  attachment_.on(Event::found_kept);
  mapped_ = true;
  device_.flags = exports_.flags(**opened, nbd::Framing::simple);
  watched_ = std::make_shared<nbd::Watched>();
  if (!front_.adopt(socket, {.device = *std::move(opened),
                             .flags = device_.flags,
                             .watched = watched_,
                             .unread = old.left->unread})) {
    return tl::unexpected(Failure{ESHUTDOWN, "the bridge ends"});
  }
  old.socket.release();
  return true;
}

void Face::begin_hand_over() {
  observer_ = {};
  if (attachment_.on(Event::stop_to_hand) != nullptr) releasing_ = front_.release(watched_.get());
}

std::optional<Kept> Face::end_hand_over(std::chrono::steady_clock::time_point until) {
  if (!releasing_) return std::nullopt;
  auto released = releasing_->await(until);
  const int state =
      released ? leave_behind({*device_.index, device_.identifier, released->unread}) : -1;
  attachment_.on(state < 0 ? Event::late : Event::drained);
  if (state >= 0) return Kept{released->socket, state};
  if (released) ::close(released->socket);
  say(rtrs::LogLevel::warning,
      device() + ": requests do not end; the successor brings another socket");
  return std::nullopt;
}

// ---- Its size -----------------------------------------------------------------------------------

/// Opens the device a second time, to ask for its size. A failure leaves the rest as it is.
void Face::observe() {
  const Interrupt interrupt{[](void* self) { return static_cast<Face*>(self)->is_over(); }, this};
  until_ = std::chrono::steady_clock::now() + kTimeToAsk;
  auto opened = exports_.open("", interrupt);
  if (!opened) return;
  observer_ = *std::move(opened);
  observer_->only_observe();
  seen_ = sysfs_.flow(*device_.index);
  said_.clear();
  const std::uint64_t size = observer_->geometry().size;
  if (size >= sysfs_.size(*device_.index) || attachment_.on(Event::shrunk) == nullptr) return;
  say(rtrs::LogLevel::error, device() + " has " + std::to_string(sysfs_.size(*device_.index)) +
                                 " bytes, its export only " + std::to_string(size) +
                                 ": the disk stays as it is, and what is beyond fails");
}

/// Requests are answered, and none waits for a path: only then may the queue be frozen.
bool Face::requests_flow() {
  const Flow now = sysfs_.flow(*device_.index);
  const Flow before = std::exchange(seen_, now);
  return now.under_way == 0 || now.ended > before.ended;
}

KernelDisk::News Face::look(bool ask) {
  until_ = std::chrono::steady_clock::now() + kTimeToAsk;
  if (!watched_->ended) return ask ? follow_size() : News::none;
  if (!watched_->goodbye && sysfs_.backend(*device_.index) == device_.identifier) return News::lost;
  attachment_.on(Event::unmapped);
  say(rtrs::LogLevel::info, device() + " was unmapped by somebody else");
  mapped_ = false;
  observer_ = {};
  lock_.reset();
  return News::unmapped;
}

KernelDisk::News Face::follow_size() {
  const Interrupt interrupt{[](void* self) { return static_cast<Face*>(self)->is_over(); }, this};
  // The last attempt may have failed where it opens the device a second time.
  if (!observer_) observe();
  if (!observer_) return is_over() ? News::silent : News::none;
  if (!observer_->look_again(interrupt)) return is_over() ? News::silent : News::none;
  const std::string shrunk = device() +
                             ": its export has shrunk at the server; requests behind "
                             "the end that it has there fail with EIO";
  if (observer_->geometry().shrunk && once(shrunk)) say(rtrs::LogLevel::error, shrunk);
  const std::uint64_t size = observer_->geometry().size;
  const bool flow = requests_flow();
  if (size / kSector <= sysfs_.size(*device_.index) / kSector) return News::none;
  if (flow && (seen_.under_way == 0 || options_.all_paths_work())) return News::grown;
  wait_with_growth(size);
  return News::none;
}

void Face::wait_with_growth(std::uint64_t size) {
  const std::string grown = "the export has grown to " + std::to_string(size) + " bytes";
  if (once(grown))
    say(rtrs::LogLevel::info, grown + "; " + device() + " follows once requests flow");
}

void Face::grow() {
  const std::uint64_t size = observer_->geometry().size;
  if (!front_.grow(watched_.get(), size)) return wait_with_growth(size);
  const Row* const row = attachment_.on(Event::grown);
  if (row == nullptr) return;
  device_.size = size;
  auto netlink = Netlink::open();
  auto told =
      netlink ? netlink->send(message_of(*row->message, device_)) : tl::unexpected(netlink.error());
  const std::string grown = "the export has grown to " + std::to_string(size) + " bytes";
  const std::string result = told ? grown + ", and " + device() + " with it"
                                  : grown + ", but " + device() + " has not: " + told.error().text;
  if (once(result)) say(told ? rtrs::LogLevel::info : rtrs::LogLevel::error, result);
}

// ---- Its end ------------------------------------------------------------------------------------

/// False: it ends.
bool Face::pause(std::chrono::milliseconds time) {
  std::unique_lock lock{mutex_};
  const auto until = std::min(until_, std::chrono::steady_clock::now() + time);
  changed_.wait_until(lock, until, [this] { return leaving_.load(); });
  return !is_over();
}

void Face::interrupt() {
  const std::lock_guard lock{mutex_};
  leaving_ = true;
  changed_.notify_all();
}

void Face::leave() {
  observer_ = {};
  const bool ours = mapped_ && sysfs_.backend(*device_.index) == device_.identifier;
  const Row* const row = attachment_.on(Event::stop);
  if (row == nullptr || !ours) return;
  auto netlink = Netlink::open();
  auto told =
      netlink ? netlink->send(message_of(*row->message, device_)) : tl::unexpected(netlink.error());
  say(told ? rtrs::LogLevel::info : rtrs::LogLevel::error,
      told ? device() + " is unmapped" : told.error().text);
}

}  // namespace rnbd::kernel
