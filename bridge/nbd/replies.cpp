// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/nbd/replies.hpp"

#include <sys/uio.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <span>

#include "bridge/nbd/connection.hpp"
#include "bridge/protocol/nbd_errors.hpp"

namespace rnbd::nbd {
namespace {

constexpr std::size_t kBatch = 512;  ///< pieces per system call; IOV_MAX is 1024

template <class T>
void set_header(Request& request, const T& header) {
  static_assert(sizeof(T) <= sizeof(request.header));
  std::memcpy(request.header.data(), &header, sizeof(T));
  request.header_size = sizeof(T);
}

Chunk make_chunk(const Request& request, ChunkType type, std::size_t length) {
  Chunk chunk;
  chunk.magic = kStructuredReplyMagic;
  chunk.flags = kChunkDone;
  chunk.type = static_cast<std::uint16_t>(type);
  chunk.cookie = request.cookie;
  chunk.length = static_cast<std::uint32_t>(length);
  return chunk;
}

void make_simple(Request& request) {
  SimpleReply reply;
  reply.magic = kSimpleReplyMagic;
  reply.error = nbd_error(request.error);
  reply.cookie = request.cookie;
  set_header(request, reply);
}

void make_error_chunk(Request& request) {
  ErrorChunk reply;
  reply.chunk = make_chunk(request, ChunkType::error, sizeof(reply) - sizeof(Chunk));
  reply.error = nbd_error(request.error);
  reply.message_length = 0;
  set_header(request, reply);
}

void make_data_chunk(Request& request) {
  OffsetData reply;
  reply.chunk = make_chunk(request, ChunkType::offset_data,
                           sizeof(reply) - sizeof(Chunk) + request.payload_size);
  reply.offset = request.offset;
  set_header(request, reply);
}

void make_status_chunk(Request& request) {
  StatusChunk reply;
  reply.chunk = make_chunk(request, ChunkType::block_status,
                           sizeof(reply) - sizeof(Chunk) + request.payload_size);
  reply.context = kBaseAllocationId;
  set_header(request, reply);
}

}  // namespace

void make_reply(Request& request, bool structured) {
  request.payload_size = 0;
  if (request.error == 0 && request.command == Command::read) {
    request.payload_size = request.length;
  } else if (request.error == 0 && request.command == Command::block_status) {
    request.payload_size = request.extents * std::uint32_t{sizeof(StatusExtent)};
  }
  if (!structured) return make_simple(request);
  if (request.error != 0) return make_error_chunk(request);
  if (request.command == Command::read) return make_data_chunk(request);
  if (request.command == Command::block_status) return make_status_chunk(request);
  make_simple(request);
}

Replies::Status Replies::send(rtrs::tcp::Stream& stream, Connection& connection,
                              void (Connection::*done)(Request&)) {
  if (stream.has_unsent()) {
    if (stream.flush() != 0) return Status::broken;
    if (stream.has_unsent()) return Status::full;
  }
  while (head_ != nullptr) {
    std::array<iovec, kBatch> pieces;
    std::size_t count = 0;
    std::size_t skip = sent_;
    std::size_t offered = 0;
    const auto add = [&](std::byte* data, std::size_t size) {
      if (skip >= size) {
        skip -= size;
        return;
      }
      pieces[count++] = {data + skip, size - skip};
      offered += size - skip;
      skip = 0;
    };
    for (Request* r = head_; r != nullptr && count + 2 <= kBatch; r = r->next) {
      add(r->header.data(), r->header_size);
      if (r->payload_size > 0) add(r->payload(), r->payload_size);
    }
    const ssize_t n = stream.send(std::span{pieces}.first(count));
    if (n == -EINTR) continue;
    if (n < 0) return n == -EAGAIN ? Status::full : Status::broken;
    sent_ += static_cast<std::size_t>(n);
    while (head_ != nullptr && sent_ >= head_->header_size + head_->payload_size) {
      Request& finished = *head_;
      sent_ -= finished.header_size + finished.payload_size;
      head_ = finished.next;
      if (head_ == nullptr) tail_ = nullptr;
      (connection.*done)(finished);
    }
    if (static_cast<std::size_t>(n) < offered) return Status::full;
  }
  return stream.has_unsent() ? Status::full : Status::sent;
}

}  // namespace rnbd::nbd
