// SPDX-License-Identifier: BSD-3-Clause
// Input: whether access notices are agreed on (1), then the immediates that a hostile server sends
// on connection 0 of a path that stands (4 each). A notice is answered before the next one comes.
#include <array>
#include <optional>

#include "rdma/core/client/path.hpp"
#include "rdma/wire/immediate.hpp"
#include "tests/fuzz/fuzz.hpp"
#include "tests/fuzz/queue_pair.hpp"

using namespace rtrs;

namespace {

class Counting final : public fuzz::SilentQueuePair {
 public:
  std::uint64_t answers = 0;
  std::uint64_t posts = 0;
  std::uint64_t receives = 0;

  Ticket write_with_immediate(RemoteMemory, ConstBytes, ConstBytes, std::uint32_t value) override {
    if (wire::type_of(value) == wire::ImmediateType::access) ++answers;
    return ++posts;
  }
  void post_receives(unsigned count, std::uint32_t) override { receives += count; }
  Ticket sent() const override { return posts; }
};

void connect(ClientPath& path, QueuePair& control) {
  wire::AcceptParameters accept;
  accept.queue_depth = 8;
  accept.max_io_size = accept.max_header_size = 4096;
  accept.extension = {.present = true, .features = wire::kFeatureAccessNotice};
  const bool taken = path.on_answer(0, wire::bytes_of(wire::encode(accept))) == nullptr;
  path.start_exchange(control);
  const std::array chunks{wire::Descriptor{0x10000, 7, 8 * accept.chunk_size()}};
  const bool up = path.on_message(wire::encode_info_response(chunks), std::nullopt) == nullptr;
  fuzz::require(taken && up, "it connects");
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input{data, size};
  const bool agreed = (input.take<std::uint8_t>() & 1) != 0;
  Counting control;
  ClientPath path{{.session_name = "fuzz", .features = agreed ? wire::kFeatureAccessNotice : 0U}};
  connect(path, control);
  ClientLane lane{0, path.slots_per_lane()[0]};
  path.attach(lane, 0, 0, control);
  path.set_control_handler(&lane.connection(0));
  std::uint64_t notices = 0;
  while (!input.rest().empty()) {
    const auto immediate = input.take<std::uint32_t>();
    const auto receives = control.receives;
    if (path.on_write_with_immediate(immediate, 0) != nullptr) break;  // the path is over
    fuzz::require(control.receives == receives + 1, "each arrival's receive is posted again");
    fuzz::require(path.access() <= wire::PathAccess::inaccessible, "the access is one of three");
    const bool noticed = path.access_noticed();
    fuzz::require(!noticed || agreed, "a notice was agreed on");
    notices += noticed ? 1 : 0;
    path.acknowledge_access();
    fuzz::require(control.answers == notices, "each notice is answered once");
  }
  return 0;
}
