// Peers that got through the handshake and then do harm, or come at the worst moment.
#include <boost/asio/post.hpp>
#include <thread>

#include "rdma/transport/reactor.hpp"
#include "tests/unit/transport/scripted_server.hpp"

namespace rtrs::test {
namespace {

using namespace std::chrono_literals;

TEST_CASE("a reply right behind the info response ends the session, not the client's program") {
  ScriptedServer server{[](ScriptedServer::Wire wire) {
    auto bytes = wire.info_response();
    const auto reply =
        wire.frame(tcp::Opcode::write, tcp::kHasImmediate, encode(wire::ResponseImmediate{0, 0}));
    bytes.insert(bytes.end(), reply.begin(), reply.end());
    wire.say(wire.control, bytes);
    wire.until_closed(wire.control);
  }};
  const auto client = Client::connect(server.options(), {});
  if (client) {
    EchoOperation read{"x", {}, {}};
    CHECK((*client)->run(read, {}) == EIO);
  }
}

}  // namespace
}  // namespace rtrs::test
