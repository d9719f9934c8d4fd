// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/nbd/replies.hpp"

#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <type_traits>

#include "bridge/nbd/connection.hpp"
#include "bridge/protocol/nbd_errors.hpp"

namespace rnbd::nbd {
namespace {

template <class T>
void set_header(Request& request, const T& header) {
  static_assert(sizeof(T) <= Request::kMaxHeader);
  std::memcpy(request.header.data(), &header, sizeof(T));
  request.header_size = sizeof(T);
}

void make_simple(Request& request) {
  SimpleReply reply;
  reply.magic = kSimpleReplyMagic;
  reply.error = nbd_error(request.error);
  reply.cookie = request.cookie;
  set_header(request, reply);
}

/// `length`: the bytes behind this part of the header.
template <class Head>
Head chunk_head(const Request& request, ChunkType type, std::size_t length) {
  Head head;
  if constexpr (std::is_same_v<Head, ExtendedChunk>) {
    head.magic = kExtendedReplyMagic;
    head.offset = request.offset;
    head.length = length;
  } else {
    head.magic = kStructuredReplyMagic;
    head.length = static_cast<std::uint32_t>(length);
  }
  head.flags = kChunkDone;
  head.type = static_cast<std::uint16_t>(type);
  head.cookie = request.cookie;
  return head;
}

/// A chunk that begins with `body`.
template <class Head, class Body>
void make_chunk(Request& request, ChunkType type, const Body& body) {
  struct Whole {
    Head head;
    Body body;
  };
  static_assert(sizeof(Whole) == sizeof(Head) + sizeof(Body));
  const std::size_t length = sizeof(Body) + request.payload_size;
  set_header(request, Whole{chunk_head<Head>(request, type, length), body});
}

template <class Head>
void make_error_chunk(Request& request) {
  ErrorBody body;
  body.error = nbd_error(request.error);
  body.message_length = 0;
  make_chunk<Head>(request, ChunkType::error, body);
}

template <class Head>
void make_data_chunk(Request& request) {
  request.payload_size = static_cast<std::uint32_t>(request.length);
  DataBody body;
  body.offset = request.offset;
  make_chunk<Head>(request, ChunkType::offset_data, body);
}

void make_status_chunk(Request& request) {
  request.payload_size = request.extents * std::uint32_t{sizeof(StatusExtent)};
  StatusBody body;
  body.context = kBaseAllocationId;
  make_chunk<Chunk>(request, ChunkType::block_status, body);
}

void make_extended_status_chunk(Request& request) {
  request.payload_size = request.extents * std::uint32_t{sizeof(ExtendedStatusExtent)};
  ExtendedStatusBody body;
  body.context = kBaseAllocationId;
  body.count = request.extents;
  make_chunk<ExtendedChunk>(request, ChunkType::extended_block_status, body);
}

void make_structured(Request& request) {
  if (request.error != 0) return make_error_chunk<Chunk>(request);
  if (request.command == Command::read) return make_data_chunk<Chunk>(request);
  if (request.command == Command::block_status) return make_status_chunk(request);
  make_simple(request);
}

void make_extended(Request& request) {
  if (request.error != 0) return make_error_chunk<ExtendedChunk>(request);
  if (request.command == Command::read) return make_data_chunk<ExtendedChunk>(request);
  if (request.command == Command::block_status) return make_extended_status_chunk(request);
  set_header(request, chunk_head<ExtendedChunk>(request, ChunkType::none, 0));
}

}  // namespace

void make_reply(Request& request, Framing framing) {
  request.payload_size = 0;
  switch (framing) {
    case Framing::simple:
      if (request.error == 0 && request.command == Command::read) {
        request.payload_size = static_cast<std::uint32_t>(request.length);
      }
      return make_simple(request);
    case Framing::structured:
      return make_structured(request);
    case Framing::extended:
      return make_extended(request);
  }
}

void Replies::Batch::add(std::byte* data, std::size_t size) {
  const std::size_t skipped = std::min(skip_, size);
  skip_ -= skipped;
  if (skipped == size) return;
  pieces_[count_++] = {data + skipped, size - skipped};
  bytes_ += size - skipped;
}

void Replies::gather(Batch& batch) const {
  batch.skip_ = sent_;
  for (Request* r = head_; r != nullptr && batch.count_ + 2 <= Batch::kPieces; r = r->next) {
    batch.add(r->header.data(), r->header_size);
    if (r->payload_size > 0) batch.add(r->payload(), r->payload_size);
  }
}

void Replies::advance(std::size_t bytes, Connection& connection, Done done) {
  sent_ += bytes;
  while (head_ != nullptr && sent_ >= head_->header_size + head_->payload_size) {
    Request& finished = *head_;
    sent_ -= finished.header_size + finished.payload_size;
    head_ = finished.next;
    if (head_ == nullptr) tail_ = nullptr;
    (connection.*done)(finished);
  }
}

Replies::Status Replies::send(rtrs::tcp::Stream& stream, Connection& connection, Done done) {
  if (stream.has_unsent()) {
    if (stream.flush() != 0) return Status::broken;
    if (stream.has_unsent()) return Status::full;
  }
  while (head_ != nullptr) {
    Batch batch;
    gather(batch);
    const ssize_t n = stream.send(batch.pieces());
    if (n == -EINTR) continue;
    if (n < 0) return n == -EAGAIN ? Status::full : Status::broken;
    advance(static_cast<std::size_t>(n), connection, done);
    if (static_cast<std::size_t>(n) < batch.bytes()) return Status::full;
  }
  return stream.has_unsent() ? Status::full : Status::sent;
}

}  // namespace rnbd::nbd
