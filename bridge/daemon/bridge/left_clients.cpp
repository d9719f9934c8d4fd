// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/daemon/bridge/left_clients.hpp"

#include <sys/mman.h>
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
#include <utility>

#include "bridge/daemon/logging.hpp"
#include "bridge/protocol/messages.hpp"
#include "bridge/protocol/printable.hpp"
#include "rdma/owned_fd.hpp"

namespace rnbd {
namespace {

/// Between two attempts to open a disk, and to see that the bridge ends.
constexpr std::chrono::milliseconds kAgain{250}, kMoment{50};

using wire::le16;
using wire::le32;
using wire::le64;

constexpr std::string_view kRecord = "clients", kClient = "client-";
/// Bytes of a record that is read; a client has 256 KiB of unread requests at most.
constexpr std::size_t kMost = std::size_t{256} * 1024 * 1024;

// ---- The record, little-endian -----------------------------------------------------------------

struct Head {
  std::array<char, 8> magic{'R', 'N', 'B', 'D', 'H', 'A', 'N', 'D'};
  le16 version = 1;
  le16 kind = 1;  ///< of a bridge
  le32 reserved = 0;
};
struct Part {
  static constexpr std::uint16_t kEnd = 0, kClient = 2;
  static constexpr std::uint16_t kHasDescriptor = 1, kMustBeKnown = 2;
  le16 type = kEnd;
  le16 flags = 0;
  le32 length = 0;  ///< bytes behind it
};
/// Behind it are the disk's name and the unread bytes.
struct Client {
  static constexpr std::uint32_t kWriter = 1, kUnflushed = 2, kBlockStatus = 4, kLost = 8,
                                 kReadOnly = 16;
  le64 size = 0;
  wire::Uuid export_uuid{};
  le64 writer_serial = 0;
  le64 sight = 0;
  le64 generation = 0;
  le64 volatile_epoch = 0;
  le32 storage_life = 0;
  le32 flags = 0;
  le16 transmission = 0;
  le16 framing = 0;
  le32 name = 0;  ///< bytes
};
static_assert(sizeof(Head) == 16 && sizeof(Part) == 8 && sizeof(Client) == 72);

template <class T>
void append(std::string& record, const T& value) {
  const auto bytes = rtrs::wire::bytes_of(value);
  record.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

template <class T>
std::optional<T> take(std::span<const std::byte>& bytes) {
  if (bytes.size() < sizeof(T)) return std::nullopt;
  T value;
  std::memcpy(&value, bytes.data(), sizeof(T));
  bytes = bytes.subspan(sizeof(T));
  return value;
}

std::string text_in(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string body_of(const nbd::Released& client) {
  const LeftDisk& disk = *client.disk;
  Client head;
  head.size = disk.size;
  head.export_uuid = disk.export_uuid;
  head.writer_serial = disk.witness.writer_serial;
  head.sight = disk.witness.sight;
  head.generation = disk.witness.generation;
  head.volatile_epoch = disk.volatile_epoch;
  head.storage_life = disk.witness.storage_life;
  head.flags = (disk.writer ? Client::kWriter : 0) | (disk.unflushed ? Client::kUnflushed : 0) |
               (client.block_status ? Client::kBlockStatus : 0) | (disk.lost ? Client::kLost : 0) |
               (disk.read_only ? Client::kReadOnly : 0);
  head.transmission = client.flags;
  head.framing = static_cast<std::uint16_t>(client.framing);
  head.name = static_cast<std::uint32_t>(disk.name.size());
  std::string body;
  append(body, head);
  return body + disk.name + client.unread;
}

std::optional<nbd::Released> client_in(std::span<const std::byte> body) {
  const auto head = take<Client>(body);
  if (!head || head->name > body.size() ||
      head->framing > static_cast<std::uint16_t>(nbd::Framing::extended)) {
    return std::nullopt;
  }
  LeftDisk disk{.name = text_in(body.first(head->name)),
                .size = head->size,
                .export_uuid = head->export_uuid,
                .read_only = (head->flags & Client::kReadOnly) != 0,
                .writer = (head->flags & Client::kWriter) != 0,
                .unflushed = (head->flags & Client::kUnflushed) != 0,
                .lost = (head->flags & Client::kLost) != 0,
                .volatile_epoch = head->volatile_epoch};
  disk.witness.writer_serial = head->writer_serial;
  disk.witness.sight = head->sight;
  disk.witness.generation = head->generation;
  disk.witness.storage_life = head->storage_life;
  return nbd::Released{.unread = text_in(body.subspan(head->name)),
                       .flags = head->transmission,
                       .framing = static_cast<nbd::Framing>(head->framing.value()),
                       .block_status = (head->flags & Client::kBlockStatus) != 0,
                       .disk = std::move(disk)};
}

// ---- Descriptors -------------------------------------------------------------------------------

/// A file in memory takes a record at once, unless the memory is used up.
bool write_record(int fd, const std::string& record) {
  return ::write(fd, record.data(), record.size()) == static_cast<ssize_t>(record.size());
}

std::vector<std::byte> read_all(int fd) {
  const off_t size = ::lseek(fd, 0, SEEK_END);
  if (size <= 0 || static_cast<std::size_t>(size) > kMost) return {};
  std::vector<std::byte> bytes(static_cast<std::size_t>(size));
  const ssize_t n = ::pread(fd, bytes.data(), bytes.size(), 0);
  bytes.resize(n < 0 ? 0 : static_cast<std::size_t>(n));
  return bytes;
}

void close_all(std::vector<nbd::Released>& clients) {
  for (nbd::Released& client : clients) {
    if (client.socket >= 0) ::close(std::exchange(client.socket, -1));
  }
}

/// "" or why the client must not go on with this disk.
std::string complaint_about(const nbd::Released& client, Disk& disk, const nbd::Exports& exports,
                            const Interrupt& interrupt) {
  if (std::string why = disk.go_on_from(*client.disk, interrupt); !why.empty()) return why;
  // Another client writes to it at present. This one reads, as it did before.
  const bool only_refused = disk.read_only() && !disk.geometry().read_only;
  if (!client.disk->writer && only_refused) return "";
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

std::string record_of(const std::vector<nbd::Released>& clients) {
  std::string record;
  append(record, Head{});
  for (const nbd::Released& client : clients) {
    const std::string body = body_of(client);
    Part part;
    part.type = Part::kClient;
    part.flags = Part::kHasDescriptor | Part::kMustBeKnown;
    part.length = static_cast<std::uint32_t>(body.size());
    append(record, part);
    record += body;
  }
  append(record, Part{});
  return record;
}

tl::expected<std::vector<nbd::Released>, std::string> clients_of(
    std::span<const std::byte> record) {
  const auto damaged = [] { return tl::unexpected(std::string{"it is damaged"}); };
  const auto head = take<Head>(record);
  if (!head || head->magic != Head{}.magic) return damaged();
  if (head->version != Head{}.version.value() || head->kind != Head{}.kind.value())
    return tl::unexpected(std::string{"it is of another version"});
  std::vector<nbd::Released> clients;
  for (;;) {
    const auto part = take<Part>(record);
    if (!part || part->length > record.size()) return damaged();
    if (part->type == Part::kEnd) return clients;
    const auto body = record.first(part->length);
    record = record.subspan(part->length);
    if (part->type == Part::kClient) {
      auto client = client_in(body);
      if (!client) return damaged();
      clients.push_back(*std::move(client));
    } else if ((part->flags & Part::kMustBeKnown) != 0) {
      return tl::unexpected(std::string{"it has something that a later version needs"});
    }
  }
}

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
  const rtrs::OwnedFd record{::memfd_create("rnbd-clients", MFD_CLOEXEC)};
  bool stored = record && write_record(record.get(), record_of(clients)) &&
                store_descriptor(std::string{kRecord}, record.get());
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
  auto clients = clients_of(read_all(record.get()));
  if (!clients) {
    tell(rtrs::LogLevel::warning, "the record of NBD clients is of no use: " + clients.error());
    clients.emplace();
  }
  for (std::size_t i = 0; i < clients->size(); ++i) {
    const auto socket = sockets.extract(std::string{kClient} + std::to_string(i));
    if (!socket) continue;
    nbd::Released& client = (*clients)[i];
    client.socket = socket.mapped();
    waiting_[client.disk->name].push_back(std::move(client));
  }
  for (const auto& [name, socket] : sockets) ::close(socket);
}

void LeftClients::go_on(const ClientConfig& config, nbd::Exports& exports, nbd::Front& front) {
  // From here on their requests are served, and must not be served by another start as well.
  for (const std::string& name : std::exchange(names_, {})) forget_descriptor(name);
  if (waiting_.empty()) return front.open_door();
  thread_ = std::thread{[this, &config, &exports, &front] { run(config, exports, front); }};
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
      disk = open_all(name, disk->second, exports, last) ? serve(disk, front) : std::next(disk);
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
  const Interrupt interrupt{
      [](void* over) { return static_cast<std::atomic<bool>*>(over)->load(); }, &over_};
  for (Waiting& each : clients) {
    if (each.disk) continue;
    Absent absent = Absent::refused;
    auto opened = exports.open(name, interrupt, absent);
    if (!opened) {
      if (over_ || (!last && may_pass(opened.error().error))) return false;
      disconnect(clients, opened.error().text, [](const Waiting&) { return true; });
      return true;
    }
    const std::string why = complaint_about(each.client, **opened, exports, interrupt);
    if (why.empty()) {
      each.disk = *std::move(opened);
      continue;
    }
    if (over_ && (*opened)->must_claim()) return false;  // perhaps for that reason only
    // Those who knew the same have the same answer.
    const LeftDisk refused = *each.client.disk;
    disconnect(clients, why, [&refused](const Waiting& other) {
      return other.client.disk->writer == refused.writer &&
             other.client.disk->witness.writer_serial == refused.witness.writer_serial &&
             other.client.disk->witness.sight == refused.witness.sight;
    });
    return open_all(name, clients, exports, last);
  }
  return true;
}

/// Those of the clients without their disk that `whom` says.
void LeftClients::disconnect(std::vector<Waiting>& clients, const std::string& why,
                             const std::function<bool(const Waiting&)>& whom) {
  std::erase_if(clients, [&](Waiting& each) {
    if (each.disk || !whom(each)) return false;
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
