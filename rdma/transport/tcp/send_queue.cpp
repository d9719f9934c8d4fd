// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/transport/tcp/send_queue.hpp"

#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <span>
#include <utility>

#include "rdma/wire/ensure.hpp"

namespace rtrs::tcp {
namespace {

constexpr std::size_t kFirstRing = 16;  ///< frames; power of two
constexpr std::size_t kMaxVector = 96;  ///< pieces per system call; three per frame at most

/// Collects the unsent pieces of frames for one sendmsg.
class Gather {
 public:
  explicit Gather(std::size_t skip) : skip_{skip} {}

  void add(const std::byte* data, std::size_t size) {
    const std::size_t skipped = std::min(skip_, size);
    skip_ -= skipped;
    if (size == skipped) return;
    vector_[count_++] = {const_cast<std::byte*>(data + skipped), size - skipped};
    total_ += size - skipped;
  }
  bool full() const { return count_ + 3 > kMaxVector; }
  std::size_t total() const { return total_; }

  ssize_t send(Stream& stream) { return stream.send(std::span{vector_}.first(count_)); }

 private:
  std::array<iovec, kMaxVector> vector_;
  std::size_t count_ = 0;
  std::size_t skip_;
  std::size_t total_ = 0;
};

}  // namespace

SendQueue::Frame& SendQueue::append(const FrameHeader& header) {
  if (count_ == ring_.size()) grow();
  Frame& frame = at(count_++);
  ++posted_;
  std::memcpy(frame.bytes.data(), &header, sizeof(header));
  frame.inlined = 0;
  frame.data = {};
  return frame;
}

Ticket SendQueue::push(const FrameHeader& header, ConstBytes data, ConstBytes inlined) {
  RTRS_ENSURE(inlined.size() <= QueuePair::kMaxInline);
  Frame& frame = append(header);
  frame.data = data;
  frame.inlined = static_cast<std::uint32_t>(inlined.size());
  if (!inlined.empty())  // memcpy from nowhere is undefined even for no bytes
    std::memcpy(frame.bytes.data() + sizeof(header), inlined.data(), inlined.size());
  return posted_;
}

Ticket SendQueue::push_copy(const FrameHeader& header, ConstBytes message) {
  if (message.size() <= QueuePair::kMaxInline) return push(header, {}, message);
  Frame& frame = append(header);
  frame.owned = std::make_unique<std::byte[]>(message.size());
  std::memcpy(frame.owned.get(), message.data(), message.size());
  frame.data = {frame.owned.get(), message.size()};
  return posted_;
}

int SendQueue::send(Stream& stream) {
  if (stream.has_unsent()) {
    if (const int error = stream.flush(); error != 0 || stream.has_unsent()) return error;
  }
  while (count_ > 0) {
    Gather gather{offset_};
    for (std::size_t i = 0; i < count_ && !gather.full(); ++i) {
      const Frame& frame = at(i);
      if (frame.data.empty()) {
        gather.add(frame.bytes.data(), sizeof(FrameHeader) + frame.inlined);
        continue;
      }
      gather.add(frame.bytes.data(), sizeof(FrameHeader));
      gather.add(frame.data.data(), frame.data.size());
      if (frame.inlined > 0) gather.add(frame.bytes.data() + sizeof(FrameHeader), frame.inlined);
    }
    const ssize_t n = gather.send(stream);
    if (n < 0) {
      if (n == -EINTR) continue;
      return n == -EAGAIN ? 0 : static_cast<int>(-n);
    }
    advance(static_cast<std::size_t>(n));
    if (static_cast<std::size_t>(n) < gather.total()) return 0;  // the socket is full
  }
  return 0;
}

void SendQueue::advance(std::size_t bytes) {
  offset_ += bytes;
  while (count_ > 0 && offset_ >= at(0).size()) {
    offset_ -= at(0).size();
    at(0).owned.reset();
    head_ = (head_ + 1) & (ring_.size() - 1);
    --count_;
  }
  sent_ = std::max(sent_, posted_ - count_);
}

void SendQueue::disown() {
  for (std::size_t i = 0; i < count_; ++i) disown(at(i));
  sent_ = posted_;
}

void SendQueue::disown(ConstBytes memory) {
  for (std::size_t i = 0; i < count_; ++i) {
    const std::byte* const begin = at(i).data.data();
    const bool inside = std::less_equal<>{}(memory.data(), begin) &&
                        std::less<>{}(begin, memory.data() + memory.size());
    if (inside) disown(at(i));
  }
}

void SendQueue::disown(Frame& frame) {
  if (frame.data.empty() || frame.owned) return;
  frame.owned = std::make_unique<std::byte[]>(frame.data.size());
  std::memcpy(frame.owned.get(), frame.data.data(), frame.data.size());
  frame.data = {frame.owned.get(), frame.data.size()};
}

void SendQueue::clear() {
  count_ = 0;
  offset_ = 0;
  ring_.clear();
  head_ = 0;
  sent_ = posted_;
}

void SendQueue::grow() {
  std::vector<Frame> bigger(std::max(kFirstRing, ring_.size() * 2));
  for (std::size_t i = 0; i < count_; ++i) bigger[i] = std::move(at(i));
  ring_ = std::move(bigger);
  head_ = 0;
}

}  // namespace rtrs::tcp
