// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/daemon/bridge/left_clients.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <iterator>
#include <map>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "bridge/daemon/logging.hpp"
#include "bridge/protocol/messages.hpp"
#include "bridge/protocol/printable.hpp"
#include "rdma/owned_fd.hpp"

namespace rnbd {
namespace {

/// Between two attempts to open a disk, and to see that the bridge ends.
constexpr std::chrono::milliseconds kAgain{250}, kMoment{50};

constexpr const char* kOtherWriter = "another client may have written meanwhile";
constexpr std::string_view kRecord = "clients", kClient = "client-";
// ---- Descriptors -------------------------------------------------------------------------------

void close_all(std::vector<nbd::Released>& clients) {
  for (nbd::Released& client : clients) {
    if (client.socket >= 0) ::close(std::exchange(client.socket, -1));
  }
}

/// Another client writes to it at present, so that this one may only read.
bool is_only_refused(Disk& disk) { return disk.read_only() && !disk.geometry().read_only; }

/// "" or why the client must not go on with this disk.
std::string complaint_about(const nbd::Released& client, Disk& disk, const nbd::Exports& exports,
                            const Interrupt& interrupt) {
  if (std::string why = disk.go_on_from(*client.disk, interrupt); !why.empty()) return why;
  // It reads, as it did before.
  if (!client.disk->writer && is_only_refused(disk)) return "";
  unsigned now = exports.flags(disk, client.framing);
  const bool extents = disk.geometry().extents;
  if (client.framing == nbd::Framing::extended && client.block_status && extents)
    now |= nbd::kBlockStatusPayload;
  // Its abilities must be those that it was told of. It may write exactly if it could before.
  if ((client.flags & ~now) != 0 || ((client.flags ^ now) & nbd::kReadOnly) != 0 ||
      (client.block_status && !extents)) {
    return "the export has other abilities now";
  }
  return "";
}

/// True if the same question may have another answer soon.
bool may_pass(int error) {
  return error != ENOENT && error != EACCES && error != EINVAL && error != ESTALE &&
         error != EREMCHG && error != EROFS;
}

void tell(rtrs::LogLevel level, const std::string& text) { log_function()(level, text); }

}  // namespace

void store_clients(std::vector<nbd::Released> clients) {
  if (clients.empty()) return;
  const std::size_t most = std::max<std::size_t>(most_kept_descriptors(), 1) - 1;
  const std::size_t all = clients.size();
  if (all > most) {
    tell(rtrs::LogLevel::warning, "the service manager keeps the sockets of " +
                                      std::to_string(most) + " of " + std::to_string(all) +
                                      " NBD clients (FileDescriptorStoreMax)");
    std::vector<nbd::Released> others{
        std::make_move_iterator(clients.begin() + static_cast<std::ptrdiff_t>(most)),
        std::make_move_iterator(clients.end())};
    close_all(others);
    clients.resize(most);
  }
  const rtrs::OwnedFd record = file_of(record_of({.listeners = {}, .clients = clients}));
  bool stored = record && store_descriptor(std::string{kRecord}, record.get());
  for (std::size_t i = 0; stored && i < clients.size(); ++i)
    stored = store_descriptor(std::string{kClient} + std::to_string(i), clients[i].socket);
  tell(stored ? rtrs::LogLevel::info : rtrs::LogLevel::warning,
       (stored ? "NBD clients that are left to the next start: "
               : "NBD clients that cannot be left to the next start: ") +
           std::to_string(clients.size()));
  close_all(clients);
}

// ---- The successor -----------------------------------------------------------------------------

LeftClients::LeftClients(std::vector<StoredDescriptor>& stored) {
  std::map<std::string, int> sockets;
  rtrs::OwnedFd record;
  std::erase_if(stored, [&](const StoredDescriptor& each) {
    if (each.name == kRecord)
      record = rtrs::OwnedFd{each.fd};
    else if (each.name.starts_with(kClient))
      sockets.insert_or_assign(each.name, each.fd);
    else
      return false;
    names_.push_back(each.name);
    return true;
  });
  if (names_.empty()) return;
  auto estate = estate_in(bytes_of(record.get()));
  if (!estate) {
    tell(rtrs::LogLevel::warning, "the record of NBD clients is of no use: " + estate.error());
    estate.emplace();
  }
  std::vector<nbd::Released>& clients = estate->clients;
  for (std::size_t i = 0; i < clients.size(); ++i) {
    const auto socket = sockets.extract(std::string{kClient} + std::to_string(i));
    if (!socket) continue;
    nbd::Released& client = clients[i];
    client.socket = socket.mapped();
    waiting_[client.disk->name].push_back(std::move(client));
  }
  for (const auto& [name, socket] : sockets) ::close(socket);
}

void LeftClients::take(std::vector<nbd::Released> clients) {
  for (nbd::Released& each : clients) waiting_[each.disk->name].emplace_back(std::move(each));
}

std::string LeftClients::open_now(const ClientConfig& config, nbd::Exports& exports) {
  for (auto& [name, clients] : waiting_) {
    for (Waiting& each : clients) {
      Absent absent = Absent::refused_at_once;  // the predecessor has closed it
      auto opened = exports.open(config.dynamic_export ? name : std::string{}, {}, absent);
      if (!opened) return opened.error().text;
      const std::string why = complaint_about(each.client, **opened, exports, {});
      if (!why.empty()) return in_quotes(name) + ": " + why;
      each.disk = *std::move(opened);
    }
  }
  return "";
}

void LeftClients::go_on(const ClientConfig& config, nbd::Exports& exports, nbd::Front& front) {
  // From here on their requests are served, and must not be served by another start as well.
  for (const std::string& name : std::exchange(names_, {})) forget_descriptor(name);
  if (waiting_.empty()) return front.open_door();
  if (thread_.joinable()) thread_.join();
  settled_ = false;
  const auto work = [this, &config, &exports, &front] {
    run(config, exports, front);
    settled_ = true;
  };
  try {
    thread_ = std::thread{work};
  } catch (const std::system_error&) {
    work();  // usually it takes little, and the clients are here already
  }
}

/// New clients come in behind the first attempt for all disks: they might write meanwhile, and
/// leave.
void LeftClients::run(const ClientConfig& config, nbd::Exports& exports, nbd::Front& front) {
  const auto patience = config.no_path_timeout.count() == 0
                            ? std::chrono::steady_clock::duration::max() / 2
                            : std::chrono::steady_clock::duration{config.no_path_timeout};
  const auto until = std::chrono::steady_clock::now() + patience;
  for (bool first = true; !waiting_.empty() && !over_; first = false) {
    for (auto disk = waiting_.begin(); disk != waiting_.end() && !over_;) {
      const bool last = std::chrono::steady_clock::now() >= until;
      const std::string& name = config.dynamic_export ? disk->first : std::string{};
      const bool ready = open_all(name, disk->second, exports, last) && claim(disk->second);
      disk = ready ? serve(disk, front) : std::next(disk);
    }
    if (first && !over_) front.open_door();
    for (auto pause = kAgain; !waiting_.empty() && !over_ && pause.count() > 0; pause -= kMoment)
      std::this_thread::sleep_for(kMoment);
  }
}

/// Opens the disk for all of its clients before one is served. To the others, a write of the first
/// one would look like a stranger's, if they were left to yet another start. False: not yet, or the
/// bridge ends.
bool LeftClients::open_all(const std::string& name, std::vector<Waiting>& clients,
                           nbd::Exports& exports, bool last) {
  const Interrupt interrupt = until_over();
  // The session before may seem to write still. One client waits for that, and not each.
  bool is_written = false;
  for (Waiting& each : clients) {
    if (each.disk) {
      is_written = is_written || is_only_refused(*each.disk);
      continue;
    }
    Absent absent =
        is_written || each.client.disk->read_only ? Absent::refused_at_once : Absent::refused;
    auto opened = exports.open(name, interrupt, absent);
    if (!opened) {
      if (over_ || (!last && may_pass(opened.error().error))) return false;
      disconnect(clients, opened.error().text, [](const Waiting& other) { return !other.disk; });
      return true;
    }
    const std::string why = complaint_about(each.client, **opened, exports, interrupt);
    if (why.empty()) {
      is_written = is_written || is_only_refused(**opened);
      each.disk = *std::move(opened);
      continue;
    }
    if (over_ && (*opened)->must_claim()) return false;  // perhaps for that reason only
    disconnect_alike(clients, each, why);
    return open_all(name, clients, exports, last);
  }
  return true;
}

/// Takes the right to change the disk for those who had it, before they are served: it was theirs
/// without a further write. False: not yet, as the bridge ends.
bool LeftClients::claim(std::vector<Waiting>& clients) {
  for (Waiting& each : clients) {
    if (!each.client.disk->writer) continue;
    const int error = each.disk->claim_now(until_over());
    if (error == 0) continue;
    if (over_) return false;
    if (error == EPERM || error == ESTALE) {
      disconnect_alike(clients, each, kOtherWriter);
      return claim(clients);
    }
    tell(rtrs::LogLevel::warning,
         in_quotes(each.client.disk->name) +
             ": the right to write is asked for again at the next write: " +
             std::string{describe_error(error)});
  }
  return true;
}

/// Disconnects those who knew the same as one that is refused: they have the same answer. It is one
/// of them.
void LeftClients::disconnect_alike(std::vector<Waiting>& clients, Waiting& one,
                                   const std::string& why) {
  const LeftDisk refused = *one.client.disk;
  const bool has_disk = static_cast<bool>(one.disk);
  disconnect(clients, why, [&](const Waiting& other) {
    return static_cast<bool>(other.disk) == has_disk &&
           other.client.disk->writer == refused.writer &&
           other.client.disk->witness.writer_serial == refused.witness.writer_serial &&
           other.client.disk->witness.sight == refused.witness.sight;
  });
}

Interrupt LeftClients::until_over() {
  return {[](void* over) { return static_cast<std::atomic<bool>*>(over)->load(); }, &over_};
}

/// A disk that was opened for one of them is closed, which may wait for the server.
void LeftClients::disconnect(std::vector<Waiting>& clients, const std::string& why,
                             const std::function<bool(const Waiting&)>& whom) {
  std::erase_if(clients, [&](Waiting& each) {
    if (!whom(each)) return false;
    tell(rtrs::LogLevel::warning,
         "an NBD client of " + in_quotes(each.client.disk->name) + " is disconnected: " + why);
    ::close(each.client.socket);
    return true;
  });
}

LeftClients::Disks::iterator LeftClients::serve(Disks::iterator disk, nbd::Front& front) {
  tell(rtrs::LogLevel::info,
       "NBD clients of " + in_quotes(disk->first) +
           " that go on after the restart: " + std::to_string(disk->second.size()));
  for (auto& [client, lease] : disk->second) {
    if (!front.adopt(client.socket, {.device = std::move(lease),
                                     .flags = client.flags,
                                     .framing = client.framing,
                                     .block_status = client.block_status,
                                     .unread = std::move(client.unread)})) {
      ::close(client.socket);
    }
  }
  return waiting_.erase(disk);
}

/// The next start begins with what this one has found out, also for those who knew the same.
void LeftClients::bring_up_to_date(std::vector<Waiting>& clients) {
  for (Waiting& each : clients) {
    if (!each.disk) continue;
    const LeftDisk before = *each.client.disk;
    each.client.disk = each.disk->leave_behind();
    if (!before.writer || !each.client.disk) continue;
    for (Waiting& other : clients) {
      if (!other.disk && other.client.disk && other.client.disk->writer &&
          other.client.disk->witness.writer_serial == before.witness.writer_serial) {
        other.client.disk->writer = each.client.disk->writer;
        other.client.disk->witness = each.client.disk->witness;
      }
    }
  }
}

std::vector<nbd::Released> LeftClients::end() {
  over_ = true;
  if (thread_.joinable()) thread_.join();
  std::vector<nbd::Released> left;
  for (auto& [name, clients] : std::exchange(waiting_, {})) {
    bring_up_to_date(clients);
    for (Waiting& each : clients) {
      if (each.client.disk)
        left.push_back(std::move(each.client));
      else
        ::close(each.client.socket);
      if (each.disk) opened_.push_back(std::move(each.disk));
    }
  }
  return left;
}

}  // namespace rnbd
