// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/server/block_server.hpp"

#include <atomic>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "bridge/protocol/printable.hpp"
#include "bridge/server/rights.hpp"
#include "rdma/server.hpp"

namespace rnbd {
namespace {

/// Migration is over when the other writer has left and cannot come back: what is left excludes
/// others as rw does.
const char* present_access(const Lease& lease, const ReservationBook& reservations) {
  if (lease.unclaimed()) return "unclaimed";
  const bool over = lease.mode() == wire::AccessMode::migration && reservations.is_alone(lease);
  return to_string(over ? wire::AccessMode::read_write : lease.mode());
}

}  // namespace

BlockServer::BlockServer(ExportCatalogue& catalogue, BlockServerLimits limits, Services& services)
    : catalogue_{catalogue}, limits_{limits}, services_{services} {
  services_.sessions = this;
}

BlockServer::~BlockServer() { services_.sessions = nullptr; }

QueueTable& BlockServer::queues_of(rtrs::Reactor* reactor) {
  std::unique_ptr<QueueTable>& table = queues_[reactor];
  if (table == nullptr) table = std::make_unique<QueueTable>(reactor, catalogue_, services_);
  return *table;
}

void* BlockServer::on_session_up(rtrs::ServerSession& session) {
  SessionFacts facts;
  facts.name = rtrs::name_of(session);
  facts.peer = rtrs::peer_of(session);
  facts.identity = rtrs::identity_of(session).name;
  facts.uuid = number_of_user(rtrs::uuid_of(session), facts.identity);
  const std::uint64_t features = rtrs::features_of(session);
  facts.extensions = (features & rtrs::wire::kFeatureUserMessages) != 0;
  facts.features = facts.extensions ? features : 0;
  facts.claims = (facts.features & wire::kFeatureClaims) != 0;
  facts.queue_depth = limits_.queue_depth;
  facts.max_io_size = limits_.max_io_size;
  facts.ids = limits_.ids;
  facts.open_timeout = limits_.open_timeout;
  facts.throttle = std::make_shared<Throttle>(session_limits_);
  const std::lock_guard lock{mutex_};
  auto mine = std::make_unique<BlockSession>(std::move(facts), catalogue_,
                                             queues_of(rtrs::reactor_of(session)), services_);
  return (sessions_[&session] = std::move(mine)).get();
}

void BlockServer::on_request(rtrs::ServerSession& session, rtrs::ServerRequest& request) {
  static_cast<BlockSession*>(rtrs::context_of(session))->on_request(request);
}

void BlockServer::on_memory_path_up(rtrs::ServerSession& session, const rtrs::wire::Uuid& path,
                                    rtrs::Regions& regions) {
  for (const auto& annex : catalogue_.annexes())
    annex->on_memory_path_up(session, path, regions, services_);
}

void BlockServer::on_memory_path_down(rtrs::ServerSession& session, const rtrs::wire::Uuid& path) {
  for (const auto& annex : catalogue_.annexes()) annex->on_memory_path_down(session, path);
  static_cast<BlockSession*>(rtrs::context_of(session))->on_memory_path_down(path);
}

void BlockServer::on_session_down(rtrs::ServerSession& session) {
  std::unique_ptr<BlockSession> mine;  // dies without the lock: it may close files
  {
    const std::lock_guard lock{mutex_};
    auto node = sessions_.extract(&session);
    if (!node.empty()) mine = std::move(node.mapped());
  }
}

std::vector<rtrs::SessionItem> BlockServer::items(rtrs::ServerSession& session) {
  auto& mine = *static_cast<BlockSession*>(rtrs::context_of(session));
  std::vector<rtrs::SessionItem> all;
  for (const auto& device : mine.devices().slots()) {
    if (!device) continue;
    all.push_back({device->name, present_access(device->lease, catalogue_.reservations()),
                   device->running, device->ended, mine.oldest_of(*device), device->waiting});
  }
  return all;
}

// ---- Idle sessions and their devices
// --------------------------------------------------------------

void BlockServer::reclaim(rtrs::Reactor* reactor, const WriterCount* storage,
                          const std::string& reason, std::function<void()> then) {
  ask_writers(
      reactor, storage,
      [this, reason](rtrs::ServerSession& session) { return end_idle(session, reason); },
      [then = std::move(then)](bool) { then(); });
}

void BlockServer::survey(rtrs::Reactor* reactor, const WriterCount* storage,
                         std::function<void(bool)> then) {
  ask_writers(
      reactor, storage, [](rtrs::ServerSession& session) { return !rtrs::is_idle(session); },
      std::move(then));
}

void BlockServer::visit(rtrs::Reactor* reactor, rtrs::ServerSession* session,
                        std::function<void(rtrs::ServerSession&)> work) {
  services_.later(reactor, [this, session, work = std::move(work)] {
    if (is_known(session)) work(*session);
  });
}

/// Asks every reactor, because a session may only be used on its own one. Calls `then` with true if
/// `look` was true for a session that may write to the storage.
void BlockServer::ask_writers(rtrs::Reactor* reactor, const WriterCount* storage, const Look& look,
                              std::function<void(bool)> then) {
  struct Round {
    std::atomic<std::size_t> left;
    std::atomic<bool> any{false};
    std::function<void(bool)> then;
  };
  std::set<rtrs::Reactor*> all;
  {
    const std::lock_guard lock{mutex_};
    for (const auto& [session, mine] : sessions_) all.insert(rtrs::reactor_of(*session));
  }
  auto round = std::make_shared<Round>();
  round->left = all.size();
  round->then = std::move(then);
  for (rtrs::Reactor* asked : all) {
    services_.later(asked, [this, asked, storage, look, round, reactor] {
      if (look_at_writers(asked, storage, look)) round->any = true;
      if (--round->left == 0) services_.later(reactor, [round] { round->then(round->any); });
    });
  }
}

bool BlockServer::look_at_writers(rtrs::Reactor* reactor, const WriterCount* storage,
                                  const Look& look) {
  std::vector<rtrs::ServerSession*> holders;
  {
    const std::lock_guard lock{mutex_};
    for (const auto& [session, mine] : sessions_) {
      if (rtrs::reactor_of(*session) == reactor && mine->writes_to(storage)) {
        holders.push_back(session);
      }
    }
  }
  bool any = false;
  for (rtrs::ServerSession* session : holders) any = look(*session) || any;
  return any;
}

/// None of the requests that were in flight runs when the last one drops the token.
void BlockServer::drain(rtrs::Reactor* reactor, const WriterCount* storage, const Device* but,
                        std::function<void()> then) {
  std::set<rtrs::Reactor*> all;
  {
    const std::lock_guard lock{mutex_};
    for (const auto& [session, mine] : sessions_) all.insert(rtrs::reactor_of(*session));
  }
  const std::shared_ptr<void> token{
      nullptr, [this, reactor, then = std::move(then)](void*) { services_.later(reactor, then); }};
  for (rtrs::Reactor* each : all)
    services_.later(each,
                    [this, each, storage, but, token] { drain_on(each, storage, but, token); });
}

void BlockServer::drain_on(rtrs::Reactor* reactor, const WriterCount* storage, const Device* but,
                           const std::shared_ptr<void>& token) {
  std::vector<BlockSession*> here;
  {
    const std::lock_guard lock{mutex_};
    for (const auto& [session, mine] : sessions_)
      if (rtrs::reactor_of(*session) == reactor) here.push_back(mine.get());
  }
  for (BlockSession* session : here) session->drain(storage, but, token);
}

bool BlockServer::end_idle(rtrs::ServerSession& session, const std::string& reason) const {
  const std::string name = in_quotes(rtrs::name_of(session));
  const std::string peer = rtrs::peer_of(session);
  if (!rtrs::end_if_idle(session)) return false;
  services_.say(rtrs::LogLevel::info, peer,
                "session " + name + " has no path and is ended: " + reason);
  return true;
}

void BlockServer::retire_queues() {
  const std::lock_guard lock{mutex_};
  for (const auto& [reactor, table] : queues_) {
    if (!services_.has_event_loop()) continue;
    services_.later(reactor, [known = table.get()] { known->retire_what_is_over(); });
  }
}

void BlockServer::close_queues() {
  const std::lock_guard lock{mutex_};
  queues_.clear();
}

bool BlockServer::is_known(rtrs::ServerSession* session) const {
  const std::lock_guard lock{mutex_};
  return sessions_.contains(session);
}

std::size_t BlockServer::sessions() const {
  const std::lock_guard lock{mutex_};
  return sessions_.size();
}

}  // namespace rnbd
