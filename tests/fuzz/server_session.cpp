// SPDX-License-Identifier: BSD-3-Clause
// Input: a script of what a client does to a server's session, one step after another:
//   0 message (272 bytes)           the info request
//   1 place (2), length (1), bytes  a write into chunk memory
//   2 immediate (4)                 an immediate
//   3                               the oldest request ends
//   4 length (1), bytes             a message
#include <algorithm>
#include <array>
#include <deque>
#include <vector>

#include "rdma/core/client/lane.hpp"
#include "rdma/core/server/path.hpp"
#include "rdma/core/server/session.hpp"
#include "rdma/wire/immediate.hpp"
#include "rdma/wire/messages.hpp"
#include "tests/fuzz/fuzz.hpp"
#include "tests/fuzz/queue_pair.hpp"

using namespace rtrs;
using rtrs::wire::ConstBytes;
using rtrs::wire::le32;

namespace {

constexpr std::uint16_t kDepth = 2;
constexpr std::uint32_t kMaxIo = 512;
constexpr std::uint32_t kMaxHeader = 512;

/// Sends nothing; checks what a server may send.
class FakeQueuePair final : public fuzz::SilentQueuePair {
 public:
  unsigned replies = 0;

  Ticket write_with_immediate(RemoteMemory, ConstBytes data, ConstBytes header,
                              std::uint32_t immediate) override {
    fuzz::require(data.size() <= kMaxIo && header.empty(), "a reply carries data at most");
    const auto type = wire::type_of(immediate);
    if (type == wire::ImmediateType::io_response ||
        type == wire::ImmediateType::io_response_with_invalidate) {
      fuzz::require(wire::decode_response(immediate).buffer_id < kDepth, "a chunk is answered");
      ++replies;
    }
    return 1;
  }
  Ticket write(RemoteMemory, ConstBytes data) override {
    fuzz::require(data.size() <= kMaxIo, "no more data than fits");
    return 1;
  }
  Ticket send(ConstBytes message) override {
    fuzz::require(message.size() == 24, "the only message is the info response");
    return 1;
  }
};

class Handler final : public ServerHandler {
 public:
  explicit Handler(MutableBytes chunks) : chunks_{chunks} {}
  std::deque<ServerRequest*> running;
  unsigned begun = 0;

  void* on_session_up(ServerSession&) override { return nullptr; }
  void on_session_down(ServerSession&) override {}
  void on_request(ServerSession&, ServerRequest& request) override {
    fuzz::require(running.size() < kDepth, "no more requests than chunks");
    fuzz::require(request.message.size() <= wire::kMaxUserMessage, "a user message has its limit");
    fuzz::require(request.data.size() <= kMaxIo, "data has its limit");
    fuzz::require(request.data.empty() || (request.data.data() >= chunks_.data() &&
                                           request.data.data() + request.data.size() <=
                                               chunks_.data() + chunks_.size()),
                  "data lies in the chunks");
    std::fill(request.data.begin(), request.data.end(), std::byte{0x5A});
    running.push_back(&request);
    ++begun;
  }
  void finish_oldest(int error) {
    ServerRequest* request = running.front();
    running.pop_front();
    request->finish(error);
  }

 private:
  MutableBytes chunks_;
};

/// Of the session and of its path, which has the chunks.
class Owner final : public ServerSessionOwner, public ServerPathOwner {
 public:
  Owner(const ServerSessionOptions& options, Handler& handler, MutableBytes chunks)
      : chunks_{chunks}, session{options, handler, *this}, path{session, *this, {.cid_count = 1}} {}
  void on_lingering() override {}
  PathRefusal admit(std::string_view) override { return {}; }
  bool provide_chunks() override {
    path.set_chunks(chunks_);
    return true;
  }
  void on_connected() override {}
  void on_fenced(Complaint, bool) override {}
  void on_unused(std::span<const MutableBytes>, std::uint64_t) override {}
  void on_gone() override {}
  void delay_answer(ServerRequest& request, int error) override { session.answer(request, error); }

 private:
  MutableBytes chunks_;

 public:
  ServerSession session;
  ServerPath path;
};

ConstBytes take_bytes(fuzz::Input& input, std::vector<std::byte>& buffer, std::size_t length) {
  buffer.resize(length);
  for (auto& byte : buffer) byte = static_cast<std::byte>(input.take<std::uint8_t>());
  return buffer;
}

Complaint step(fuzz::Input& input, QueuePairHandler& connection, MutableBytes chunks,
               Handler& handler) {
  std::vector<std::byte> buffer;
  switch (input.take<std::uint8_t>() % 5) {
    case 0:
      return connection.on_message(take_bytes(input, buffer, 272), std::nullopt);
    case 1: {
      const std::size_t place = input.take<wire::le16>() % chunks.size();
      const auto bytes = take_bytes(input, buffer, input.take<std::uint8_t>());
      std::copy_n(bytes.begin(), std::min(bytes.size(), chunks.size() - place),
                  chunks.begin() + static_cast<std::ptrdiff_t>(place));
      return nullptr;
    }
    case 2:
      return connection.on_write_with_immediate(input.take<le32>(), 0);
    case 3:
      if (!handler.running.empty()) handler.finish_oldest(0);
      return nullptr;
    default:
      return connection.on_message(take_bytes(input, buffer, input.take<std::uint8_t>()),
                                   std::nullopt);
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::array<std::byte, kDepth*(kMaxIo + kMaxHeader)> chunks{};
  Handler handler{chunks};
  FakeQueuePair queue_pair;
  ServerSessionOptions options;
  options.queue_depth = kDepth;
  options.max_io_size = kMaxIo;
  options.max_header_size = kMaxHeader;
  Owner owner{options, handler, chunks};
  ServerSession& session = owner.session;
  ServerPath& path = owner.path;
  QueuePairHandler& connection = path.add(0, queue_pair);

  fuzz::Input input{data, size};
  Complaint complaint = nullptr;
  while (complaint == nullptr && !input.rest().empty())
    complaint = step(input, connection, chunks, handler);

  fuzz::require(queue_pair.replies + handler.running.size() == handler.begun,
                "every request is answered exactly once");
  path.close();
  session.on_path_closed(path);
  const unsigned replies = queue_pair.replies;
  while (!handler.running.empty()) handler.finish_oldest(0);
  fuzz::require(queue_pair.replies == replies, "nothing is sent on a closed path");
  fuzz::require(session.gone(), "the session ends with its last request");
  return 0;
}
