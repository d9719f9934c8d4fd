// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/daemon/bridge/kernel_disks.hpp"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string_view>
#include <thread>
#include <utility>

#include "bridge/daemon/logging.hpp"
#include "bridge/daemon/shutdown.hpp"
#include "bridge/kernel/face.hpp"
#include "bridge/kernel/mapping.hpp"

namespace rnbd {
namespace {

using kernel::DiskState;
using kernel::DiskStatus;
using std::chrono::steady_clock;

constexpr std::string_view kSocket = "socket-", kState = "state-";
/// For attempts to end that were told to.
constexpr std::chrono::milliseconds kTimeToEnd{500};
/// Beyond connect-timeout, so that the reason is the server's.
constexpr std::chrono::seconds kMore{2};
/// Others start after this program, and must not wait for one disk that does not come.
constexpr std::chrono::seconds kReadyWithin{30};
constexpr std::chrono::milliseconds kLookAgain{20};

/// A disk with settings of its own, and what it stands on.
struct DiskOfSettings {
  DiskOfSettings(const BridgeOptions& options, Connections& connections, nbd::Front& front,
                 const std::optional<kernel::Kept>& kept)
      : config{options.client},
        exports{config, connections},
        face{exports, front,
             kernel::FaceOptions{.index = options.kernel->index,
                                 .name = options.kernel->name,
                                 .dead_timeout = options.kernel->dead_timeout,
                                 .retry = options.kernel->retry,
                                 .server = config.server(),
                                 .all_paths_work = [&] { return all_paths_work(connections); },
                                 .log = log_function()},
             kept} {}

  /// Nothing must wait for a path while the size of a disk changes.
  static bool all_paths_work(Connections& connections) {
    const auto works = [](const rtrs::PathStatus& path) {
      return path.state == rtrs::PathState::connected ||
             path.state == rtrs::PathState::disconnected;
    };
    return std::ranges::all_of(connections.status().paths, works);
  }

  const ClientConfig config;
  nbd::Exports exports;
  kernel::Face face;
};

bool is_served(const DiskStatus& disk) { return disk.state == DiskState::serving; }

/// The manager passes the names of all descriptors in one variable. Linux starts no program with
/// one of 128 KiB, so the disks beyond are connected anew, as after a crash.
constexpr std::size_t kMostNames = 100'000;  ///< bytes
constexpr std::size_t kStoredName = 24;      ///< of each that are not the disk's

std::string count_of(const std::vector<DiskStatus>& all) {
  return std::to_string(std::ranges::count_if(all, is_served)) + " of " +
         std::to_string(all.size()) + (all.size() == 1 ? " disk" : " disks");
}

void tell(rtrs::LogLevel level, const std::string& text) { log_function()(level, text); }

}  // namespace

StoredDisks take_stored_disks(std::vector<StoredDescriptor>& stored) {
  StoredDisks disks;
  std::erase_if(stored, [&](const StoredDescriptor& each) {
    const std::string_view name{each.name};
    const bool socket = name.starts_with(kSocket), state = name.starts_with(kState);
    if (socket || state) forget_descriptor(each.name);
    if (socket) disks[each.name.substr(kSocket.size())].socket = each.fd;
    if (state) disks[each.name.substr(kState.size())].state = each.fd;
    return socket || state;
  });
  std::erase_if(disks, [](const auto& disk) {
    if (disk.second.socket < 0) ::close(disk.second.state);
    return disk.second.socket < 0;
  });
  return disks;
}

KernelDisks::KernelDisks(const BridgeOptions& options, const DiskFiles* files,
                         Connections& connections, nbd::Front& front, StoredDisks stored)
    : options_{options},
      files_{files},
      connections_{connections},
      front_{front},
      stored_{std::move(stored)} {
  if (files_ == nullptr && !options_.kernel) return;
  const auto patience =
      std::chrono::ceil<std::chrono::milliseconds>(options_.client.connect_timeout) + kMore;
  const kernel::DisksOptions defaults;
  const bool alone = files_ == nullptr;  // nobody else waits for the thread
  disks_.emplace(
      kernel::DisksOptions{.patience = patience,
                           .patience_on_path = alone ? patience : defaults.patience_on_path,
                           .has_path = [this] { return connections_.has_path(); },
                           .on_unmapped =
                               [this] {
                                 if (files_ == nullptr) ::kill(::getpid(), SIGTERM);
                               },
                           .log = log_function()});
}

std::optional<kernel::Kept> KernelDisks::kept_of(const std::string& name) {
  const auto found = stored_.extract(name);
  return found ? std::optional{found.mapped()} : std::nullopt;
}

std::shared_ptr<kernel::KernelDisk> KernelDisks::make_disk(
    const BridgeOptions& of_disk, const std::optional<kernel::Kept>& kept) const {
  auto all = std::make_shared<DiskOfSettings>(of_disk, connections_, front_, kept);
  return {all, &all->face};
}

// ---- The begin ----------------------------------------------------------------------------------

tl::expected<void, Failure> KernelDisks::begin() {
  if (!disks_) return {};
  if (files_ == nullptr) {
    const std::string& name = options_.kernel->name;
    disks_->add(name, options_.client.device, make_disk(options_, kept_of(name)));
    return await_single();
  }
  // From the first disk on there is something to hand over.
  signals_mean_drain();
  for (const std::string& name : files_->names()) {
    auto options = files_->read(name);
    if (options)
      disks_->add(name, options->client.device, make_disk(*options, kept_of(name)));
    else
      disks_->refuse(name, "", options.error());
  }
  for (const auto& [name, kept] : std::exchange(stored_, {})) {
    ::close(kept.socket);
    if (kept.state >= 0) ::close(kept.state);
    tell(rtrs::LogLevel::warning, name + ": it was served before, and its file is gone or wrong");
  }
  const auto limit = steady_clock::now() + kReadyWithin;
  disks_->await_attempts([=] { return shutdown_begun() || steady_clock::now() > limit; });
  return {};
}

/// Without limit while the kernel has the disk already.
tl::expected<void, Failure> KernelDisks::await_single() {
  for (;; std::this_thread::sleep_for(kLookAgain)) {
    const DiskStatus disk = disks_->status().front();
    if (is_served(disk)) return {};
    if (disk.trouble.empty() || disk.recovers) continue;
    disks_->stop(steady_clock::now() + kTimeToEnd);
    return tl::unexpected(Failure{disk.error, disk.trouble});
  }
}

// ---- The end ------------------------------------------------------------------------------------

void KernelDisks::stop() {
  if (disks_) disks_->stop(steady_clock::now() + kTimeToEnd);
}

void KernelDisks::end(steady_clock::time_point until) {
  if (!disks_) return;
  if (!manager_keeps_descriptors()) return disks_->leave(until);
  std::size_t names = 0;
  for (const auto& [name, kept] : disks_->hand_over(until)) {
    names += 2 * (name.size() + kStoredName);
    const bool stored = kept && names < kMostNames &&
                        store_descriptor(std::string{kSocket} + name, kept->socket) &&
                        store_descriptor(std::string{kState} + name, kept->state);
    tell(stored ? rtrs::LogLevel::info : rtrs::LogLevel::warning,
         name + ": it waits for the next start" + (stored ? "" : ", which has to bring a socket"));
  }
}

// ---- What is told -------------------------------------------------------------------------------

std::string KernelDisks::before_server() const {
  if (!disks_) return "";
  const auto all = disks_->status();
  return ", " + (files_ == nullptr ? all.front().device : count_of(all));
}

std::string KernelDisks::behind_server() const {
  if (!disks_ || files_ == nullptr) return "";
  const auto all = disks_->status();
  std::string others;
  for (const DiskStatus& disk : all) {
    if (!is_served(disk))
      others += (others.empty() ? " (" : ", ") + disk.name + " " + kernel::name_of(disk.state);
  }
  return ", " + count_of(all) + others + (others.empty() ? "" : ")");
}

Json KernelDisks::as_json() const {
  Json list = Json::array();
  for (const DiskStatus& disk : disks_->status()) {
    list.push_back({{"disk", disk.name},
                    {"device", disk.exported},
                    {"devname", disk.device.empty() ? Json() : Json(disk.device.substr(5))},
                    {"state", kernel::name_of(disk.state)},
                    {"trouble", disk.trouble}});
  }
  return list;
}

std::vector<ControlCommand> KernelDisks::with_disks(std::vector<ControlCommand> commands) {
  if (!disks_) return commands;
  const auto status = std::ranges::find(commands, "status", &ControlCommand::name);
  status->run = [this, others = status->run](const std::string& argument) {
    auto answer = others(argument);
    if (answer) (*answer)["disks"] = as_json();
    return answer;
  };
  if (files_ == nullptr) return commands;
  commands.push_back({"add-disk", "NAME",
                      "Reads the file of a disk and begins to serve it, or tries it again at once.",
                      [this](const std::string& name) { return add(name); }});
  commands.push_back({"remove-disk", "NAME",
                      "Begins to take a disk of the kernel away; whoever uses it gets EIO.",
                      [this](const std::string& name) { return remove(name); }});
  return commands;
}

tl::expected<Json, Failure> KernelDisks::add(const std::string& name) {
  auto options = files_->read(name);
  if (!options) return tl::unexpected(Failure{EINVAL, options.error()});
  disks_->add(name, options->client.device, make_disk(*options, {}));
  return Json::object();
}

tl::expected<Json, Failure> KernelDisks::remove(const std::string& name) {
  if (disks_->remove(name)) return Json::object();
  return tl::unexpected(Failure{ENOENT, "there is no disk '" + name + "' here"});
}

}  // namespace rnbd
