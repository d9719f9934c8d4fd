// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/daemon/bridge/estate.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>

#include "bridge/protocol/messages.hpp"

namespace rnbd {
namespace {

using wire::le16;
using wire::le32;
using wire::le64;

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
  static constexpr std::uint16_t kEnd = 0, kListener = 1, kClient = 2;
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

void append_part(std::string& record, std::uint16_t type, const std::string& body) {
  Part part;
  part.type = type;
  part.flags = Part::kHasDescriptor | Part::kMustBeKnown;
  part.length = static_cast<std::uint32_t>(body.size());
  append(record, part);
  record += body;
}

}  // namespace

std::uint16_t estate_version() { return Head{}.version.value(); }

std::string record_of(const Estate& estate) {
  std::string record;
  append(record, Head{});
  for (const LeftListener& each : estate.listeners)
    append_part(record, Part::kListener, each.address);
  for (const nbd::Released& each : estate.clients)
    append_part(record, Part::kClient, body_of(each));
  append(record, Part{});
  return record;
}

tl::expected<Estate, std::string> estate_in(std::span<const std::byte> record) {
  const auto damaged = [] { return tl::unexpected(std::string{"it is damaged"}); };
  const auto head = take<Head>(record);
  if (!head || head->magic != Head{}.magic) return damaged();
  if (head->version != Head{}.version.value() || head->kind != Head{}.kind.value())
    return tl::unexpected(std::string{"it is of another version"});
  Estate estate;
  for (;;) {
    const auto part = take<Part>(record);
    if (!part || part->length > record.size()) return damaged();
    if (part->type == Part::kEnd) return estate;
    const auto body = record.first(part->length);
    record = record.subspan(part->length);
    if (part->type == Part::kListener) {
      estate.listeners.push_back({text_in(body)});
    } else if (part->type == Part::kClient) {
      auto client = client_in(body);
      if (!client) return damaged();
      estate.clients.push_back(*std::move(client));
    } else if ((part->flags & (Part::kMustBeKnown | Part::kHasDescriptor)) != 0) {
      // The sockets come in the order of their parts, so that none can be passed over.
      return tl::unexpected(std::string{"it has something that a later version needs"});
    }
  }
}

std::vector<int*> descriptors_of(Estate& estate) {
  std::vector<int*> all;
  for (LeftListener& each : estate.listeners) all.push_back(&each.socket);
  for (nbd::Released& each : estate.clients) all.push_back(&each.socket);
  return all;
}

/// It takes a record at once, unless the memory is used up.
rtrs::OwnedFd file_of(const std::string& record) {
  rtrs::OwnedFd file{::memfd_create("rnbd-estate", MFD_CLOEXEC)};
  if (file &&
      ::write(file.get(), record.data(), record.size()) != static_cast<ssize_t>(record.size()))
    file.reset();
  return file;
}

std::vector<std::byte> bytes_of(int file) {
  const off_t size = ::lseek(file, 0, SEEK_END);
  if (size <= 0 || static_cast<std::size_t>(size) > kMost) return {};
  std::vector<std::byte> bytes(static_cast<std::size_t>(size));
  const ssize_t n = ::pread(file, bytes.data(), bytes.size(), 0);
  bytes.resize(n < 0 ? 0 : static_cast<std::size_t>(n));
  return bytes;
}

}  // namespace rnbd
