#include "bridge/server/block_server.hpp"

#include <utility>

#include "rdma/server.hpp"

namespace rnbd {

BlockServer::BlockServer(ExportCatalogue& catalogue, BlockServerLimits limits,
                         Surroundings surroundings)
    : catalogue_{catalogue}, limits_{limits}, surroundings_{std::move(surroundings)} {}

BlockServer::~BlockServer() = default;

QueueTable& BlockServer::queues_of(rtrs::Reactor* reactor) {
  std::unique_ptr<QueueTable>& table = queues_[reactor];
  if (table == nullptr) table = std::make_unique<QueueTable>(reactor, catalogue_, surroundings_);
  return *table;
}

void* BlockServer::on_session_up(rtrs::ServerSession& session) {
  SessionFacts facts;
  facts.name = rtrs::name_of(session);
  facts.peer = rtrs::peer_of(session);
  facts.extensions = (rtrs::features_of(session) & rtrs::wire::kFeatureUserMessages) != 0;
  facts.queue_depth = limits_.queue_depth;
  facts.max_io_size = limits_.max_io_size;
  const std::lock_guard lock{mutex_};
  auto mine = std::make_unique<BlockSession>(std::move(facts), catalogue_,
                                             queues_of(rtrs::reactor_of(session)), surroundings_);
  return (sessions_[&session] = std::move(mine)).get();
}

void BlockServer::on_request(rtrs::ServerSession& session, rtrs::ServerRequest& request) {
  static_cast<BlockSession*>(rtrs::context_of(session))->on_request(request);
}

void BlockServer::on_session_down(rtrs::ServerSession& session) {
  std::unique_ptr<BlockSession> mine;  // dies without the lock: it may close files
  {
    const std::lock_guard lock{mutex_};
    auto node = sessions_.extract(&session);
    if (!node.empty()) mine = std::move(node.mapped());
  }
}

void BlockServer::close_queues() {
  const std::lock_guard lock{mutex_};
  queues_.clear();
}

std::size_t BlockServer::sessions() const {
  const std::lock_guard lock{mutex_};
  return sessions_.size();
}

}  // namespace rnbd
