// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/kernel/disks.hpp"

#include <pthread.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "rdma/log_about.hpp"

namespace rnbd::kernel {
namespace {

using rtrs::Failure;
using std::chrono::steady_clock;

/// Attempts at the same time.
constexpr std::size_t kMostCalls = 32;
/// Between two attempts for a disk whose requests wait in the kernel.
constexpr std::chrono::milliseconds kSoon{250};
constexpr std::chrono::milliseconds kAskWhetherOver{100};
/// Disks at each look. A question costs both ends a message, and a bridge may have a thousand
/// disks.
constexpr std::size_t kAskAtOnce = 32;

bool is_attempted(DiskState state) {
  return state == DiskState::connecting || state == DiskState::waiting || state == DiskState::lost;
}

}  // namespace

const char* name_of(DiskState state) {
  switch (state) {
    case DiskState::connecting:
      return "connecting";
    case DiskState::waiting:
      return "waiting";
    case DiskState::serving:
      return "serving";
    case DiskState::lost:
      return "lost";
    case DiskState::refused:
      return "refused";
    case DiskState::unmapped:
      return "unmapped";
    case DiskState::leaving:
      return "leaving";
  }
  return "?";
}

struct Disks::Entry {
  DiskStatus status;
  std::shared_ptr<KernelDisk> disk;  ///< null: it is refused
  bool busy = false;                 ///< a call is under way
  steady_clock::time_point due{};    ///< of the next attempt
  std::chrono::milliseconds pause{};
};

Disks::Disks(DisksOptions options) : options_{std::move(options)}, pool_{kMostCalls} {
  next_look_ = steady_clock::now() + options_.look_every;
  thread_ = std::thread{[this] { run(); }};
}

Disks::~Disks() { stop(steady_clock::time_point::max()); }

void Disks::say(rtrs::LogLevel level, const std::string& name, const std::string& text) const {
  const rtrs::LogAbout about{{.event = "kernel_disk", .device = name}};
  if (options_.log) options_.log(level, name + ": " + text);
}

// ---- The list -----------------------------------------------------------------------------------

Disks::EntryPtr Disks::find(const std::string& name) const {
  const auto found = std::ranges::find_if(
      entries_, [&](const EntryPtr& each) { return each->status.name == name; });
  return found != entries_.end() ? *found : nullptr;
}

void Disks::put(EntryPtr entry) {
  entry->pause = options_.first_pause;
  std::erase(entries_, find(entry->status.name));
  entries_.push_back(std::move(entry));
  changed_.notify_all();
}

bool Disks::add(const std::string& name, const std::string& exported,
                std::shared_ptr<KernelDisk> disk) {
  EntryPtr old;  // goes without the lock: its end may wait for the server
  const std::lock_guard lock{mutex_};
  old = find(name);
  const bool makes_room =
      old == nullptr || (!old->busy && (old->status.state == DiskState::waiting ||
                                        old->status.state == DiskState::refused ||
                                        old->status.state == DiskState::unmapped));
  if (!makes_room || over_) return false;
  auto entry = std::make_shared<Entry>();
  entry->status = {.name = name, .exported = exported};
  entry->disk = std::move(disk);
  put(std::move(entry));
  return true;
}

void Disks::refuse(const std::string& name, const std::string& exported, const std::string& why) {
  {
    const std::lock_guard lock{mutex_};
    const EntryPtr old = find(name);
    if (old != nullptr && (old->busy || old->disk != nullptr)) return;
    auto entry = std::make_shared<Entry>();
    entry->status = {.name = name,
                     .exported = exported,
                     .state = DiskState::refused,
                     .trouble = why,
                     .error = EINVAL};
    put(std::move(entry));
  }
  say(rtrs::LogLevel::error, name, why);
}

bool Disks::remove(const std::string& name) {
  const std::lock_guard lock{mutex_};
  const EntryPtr entry = find(name);
  if (entry == nullptr) return false;
  if (std::exchange(entry->status.state, DiskState::leaving) == DiskState::leaving) return true;
  if (entry->disk != nullptr) entry->disk->interrupt();
  if (!entry->busy) settle(entry);
  return true;
}

std::vector<DiskStatus> Disks::status() const {
  const std::lock_guard lock{mutex_};
  std::vector<DiskStatus> all;
  for (const EntryPtr& entry : entries_) all.push_back(entry->status);
  return all;
}

void Disks::await_attempts(const std::function<bool()>& over) const {
  const auto is_first = [](const EntryPtr& entry) {
    return entry->status.state == DiskState::connecting;
  };
  Lock lock{mutex_};
  while (std::ranges::any_of(entries_, is_first) && !over())
    changed_.wait_for(lock, kAskWhetherOver);
}

// ---- Calls --------------------------------------------------------------------------------------

/// With mutex_ held, as what follows in this part, unless a call is being made.
void Disks::begin(const EntryPtr& entry, void (Disks::*call)(const EntryPtr& entry)) {
  entry->busy = true;
  ++calls_;
  pool_.post([this, entry, call] {
    (this->*call)(entry);
    const std::lock_guard lock{mutex_};
    --calls_;
    entry->busy = false;
    settle(entry);
    changed_.notify_all();
  });
}

/// After a call, or in place of one: a disk that is to leave does so.
void Disks::settle(const EntryPtr& entry) {
  if (entry->status.state != DiskState::leaving || over_) return;
  const bool is_listed = std::ranges::find(entries_, entry) != entries_.end();
  if (is_listed) begin(entry, &Disks::leave_one);
}

void Disks::leave_one(const EntryPtr& entry) {
  if (entry->disk != nullptr) entry->disk->leave();
  const std::lock_guard lock{mutex_};
  std::erase(entries_, entry);
}

void Disks::attempt(const EntryPtr& entry) {
  const bool first_of_server = !options_.has_path();
  const auto done = entry->disk->attempt(
      first_of_server ? options_.patience : std::min(options_.patience_on_path, options_.patience));
  const bool recovers = !done && entry->disk->waits_for_server();
  std::string told;
  {
    const std::lock_guard lock{mutex_};
    DiskStatus& status = entry->status;
    if (status.state == DiskState::leaving || over_) return;
    status.recovers = recovers;
    if (done) {
      status = {.name = status.name,
                .exported = status.exported,
                .state = DiskState::serving,
                .device = entry->disk->device()};
      entry->pause = options_.first_pause;
      return;
    }
    const std::string before = status.trouble;
    note_failure(*entry, done.error());
    // The disk has said itself that its server is missing.
    if (recovers || status.trouble == before) return;
    told = status.trouble;
  }
  say(rtrs::LogLevel::warning, entry->status.name, told);
}

void Disks::note_failure(Entry& entry, const Failure& why) {
  DiskStatus& status = entry.status;
  // An attempt that was cut short says nothing new.
  if (why.error != EINTR || status.trouble.empty()) {
    status.trouble = why.text;
    status.error = why.error;
  }
  status.state = why.error == ESTALE ? DiskState::refused : DiskState::waiting;
  entry.due = steady_clock::now() + (status.recovers ? kSoon : entry.pause);
  entry.pause = std::min(2 * entry.pause, options_.last_pause);
}

void Disks::grow(const EntryPtr& entry) { entry->disk->grow(); }

// ---- The thread ---------------------------------------------------------------------------------

void Disks::run() {
  pthread_setname_np(pthread_self(), "disks");
  Lock lock{mutex_};
  while (!over_) {
    const auto now = steady_clock::now();
    begin_due(now);
    if (now >= next_look_) {
      look_at_all(lock);
      next_look_ = steady_clock::now() + options_.look_every;
      continue;
    }
    auto next = next_look_;
    for (const EntryPtr& entry : entries_) {
      if (!entry->busy && is_attempted(entry->status.state)) next = std::min(next, entry->due);
    }
    changed_.wait_until(lock, next);
  }
}

void Disks::begin_due(Clock::time_point now) {
  for (const EntryPtr& entry : entries_) {
    if (!entry->busy && is_attempted(entry->status.state) && entry->due <= now)
      begin(entry, &Disks::attempt);
  }
}

/// One after another: nothing here waits long. Some ask their servers, in turn. The first that
/// hears nothing keeps the rest from asking.
void Disks::look_at_all(Lock& lock) {
  const std::vector<EntryPtr> all = entries_;
  lock.unlock();
  bool ask = options_.has_path();
  lock.lock();
  const std::size_t first = all.size() > kAskAtOnce ? next_asked_ % all.size() : 0;
  next_asked_ = first + kAskAtOnce;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const EntryPtr& entry = all[(first + i) % all.size()];
    if (over_) return;
    if (entry->busy || entry->status.state != DiskState::serving) continue;
    entry->busy = true;
    lock.unlock();
    const KernelDisk::News news = entry->disk->look(ask && i < kAskAtOnce);
    if (news == KernelDisk::News::unmapped) options_.on_unmapped();
    lock.lock();
    entry->busy = false;
    ask = ask && news != KernelDisk::News::silent;
    if (over_) return;
    if (entry->status.state == DiskState::leaving) {
      settle(entry);
    } else if (news == KernelDisk::News::unmapped) {
      entry->status.state = DiskState::unmapped;
      entry->status.device.clear();
      entry->status.trouble = "another program has unmapped it";
    } else if (news == KernelDisk::News::lost) {
      entry->status.state = DiskState::lost;
      entry->due = {};
      begin(entry, &Disks::attempt);
    } else if (news == KernelDisk::News::grown) {
      begin(entry, &Disks::grow);
    }
  }
}

// ---- The end ------------------------------------------------------------------------------------

void Disks::await_calls(Lock& lock, Clock::time_point until) {
  const auto ended = [this] { return calls_ == 0; };
  if (until == Clock::time_point::max())
    changed_.wait(lock, ended);
  else
    changed_.wait_until(lock, until, ended);
}

void Disks::stop(Clock::time_point until) {
  {
    const std::lock_guard lock{mutex_};
    over_ = true;
    for (const EntryPtr& entry : entries_) {
      const bool waits = entry->busy || entry->status.state != DiskState::serving;
      if (waits && entry->disk != nullptr) entry->disk->interrupt();
    }
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
  Lock lock{mutex_};
  await_calls(lock, until);
}

std::vector<Disks::Left> Disks::hand_over(Clock::time_point until) {
  std::vector<EntryPtr> served;
  {
    const std::lock_guard lock{mutex_};
    for (const EntryPtr& entry : entries_) {
      const DiskState state = entry->status.state;
      const bool is_served = state == DiskState::serving || state == DiskState::lost;
      if (!entry->busy && is_served) served.push_back(entry);
    }
  }
  for (const EntryPtr& entry : served) entry->disk->begin_hand_over();
  std::vector<Left> all;
  for (const EntryPtr& entry : served)
    all.push_back({entry->status.name, entry->disk->end_hand_over(until)});
  return all;
}

void Disks::leave(Clock::time_point until) {
  Lock lock{mutex_};
  const std::vector<EntryPtr> all = entries_;
  for (const EntryPtr& entry : all) {
    if (!entry->busy) begin(entry, &Disks::leave_one);
  }
  await_calls(lock, until);
}

}  // namespace rnbd::kernel
