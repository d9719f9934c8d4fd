// SPDX-License-Identifier: BSD-3-Clause
// Time, the server, and the end.
#include "tests/sim/memory/memory_world.hpp"

#include <algorithm>
#include <cstdio>

#include "bridge/server/brick/brick_annex.hpp"
#include "rdma/server.hpp"

namespace sim {
namespace {

/// The world that recall_memory() counts for.
std::function<void(rtrs::ServerSession&)> on_recall;

}  // namespace
}  // namespace sim

// The others are in session_answers.cpp.
namespace rtrs {
bool recall_memory(ServerSession& session) {
  sim::on_recall(session);
  return session.recall();
}
}  // namespace rtrs

namespace sim {
namespace {

constexpr unsigned kHealingSteps = 20000;
constexpr std::uint32_t kIoSize = 4096;

}  // namespace

MemoryWorld::MemoryWorld(std::uint64_t seed, bool trace) : rng_{seed}, trace_{trace} {
  brick::BrickOptions options;
  options.slots = rng_.pick({1U, 2U, 3U});
  options.places = options.slots + rng_.pick({0U, 1U, 2U});
  options.lease = rng_.pick({40U, 100U, 400U});
  blocks_ = options.places;
  steps_ = rng_.pick({300U, 600U, 1000U});
  losses_ = rng_.pick({0U, 10U, 40U});
  memory_losses_ = rng_.pick({0U, 10U, 40U});
  hostile_ = rng_.pick({0U, 20U});
  brick_ = std::make_unique<MemoryBrick>(
      options, BrickSurroundings{.later = [this](Work work) { later(std::move(work)); },
                                 .takes = [this](brick::Slot slot) { takes(slot); }});
  rnbd::CatalogueOptions how;
  how.open = [this](const std::string&, const rnbd::BackendOptions&)
      -> tl::expected<std::unique_ptr<rnbd::Backend>, rtrs::Failure> {
    return backend_of(*brick_);
  };
  how.annexes = {std::make_shared<rnbd::BrickAnnex>()};
  catalogue_ = std::make_unique<rnbd::ExportCatalogue>(how);
  rnbd::ExportSpecification disk;
  disk.name = "brick";
  disk.storage = "sim";
  if (const auto added = catalogue_->add(disk); !added) fail(added.error().text);
  server_ = std::make_unique<rnbd::BlockServer>(
      *catalogue_,
      rnbd::BlockServerLimits{kMemoryDepth, kIoSize, rnbd::DeviceIds::never_twice,
                              rtrs::Duration::zero()},
      event_loop_);
  on_recall = [this](rtrs::ServerSession& core) {
    for (const auto& session : sessions_)
      if (session->core.get() == &core) ++session->recalls;
  };
  users_.resize(rng_.pick({1U, 2U, 3U}));
  for (unsigned i = 0; i < users_.size(); ++i) {
    users_[i].number = i;
    users_[i].stubborn = rng_.chance(200);
  }
}

MemoryWorld::~MemoryWorld() { server_->close_queues(); }

void MemoryWorld::say(const std::string& text) const {
  if (trace_) std::printf("%s\n", text.c_str());
}

MemoryWorld::Uuid MemoryWorld::some_uuid() {
  Uuid uuid{};
  const std::uint64_t number = next_++;
  for (unsigned i = 0; i < 8; ++i) uuid[i] = static_cast<std::uint8_t>(number >> (8 * i));
  return uuid;
}

/// In the order in which it was asked for.
void MemoryWorld::on_reactor(Work work) {
  reactor_.push_back(std::move(work));
  later([this] {
    const Work next = std::move(reactor_.front());
    reactor_.pop_front();
    next();
  });
}

void MemoryWorld::run() {
  for (unsigned i = 0; i < steps_; ++i) step(/*faults=*/true);
  finish();
}

void MemoryWorld::step(bool faults) {
  now_ += rng_.below(3);
  brick_->tick(now_);
  if (!events_.empty() && rng_.chance(400)) {
    const std::size_t at = rng_.below(events_.size());
    const Work work = std::move(events_[at]);
    events_.erase(events_.begin() + static_cast<std::ptrdiff_t>(at));
    return work();
  }
  if (rng_.chance(500) && deliver()) return;
  if (!writes_.empty() && rng_.chance(300)) return land(rng_.below(writes_.size()));
  User& user = users_[rng_.below(users_.size())];
  if (user.away) return;
  if (faults && !user.links.empty() && rng_.chance(losses_)) {
    MemoryLink* const link = user.links[rng_.below(user.links.size())];
    return rng_.chance(500) ? lose(user, link) : link->close();
  }
  if (faults && user.memory != nullptr && rng_.chance(memory_losses_)) return lose_memory(user);
  act(user);
}

/// A message arrives on some link.
bool MemoryWorld::deliver() {
  std::vector<std::pair<MemoryLink*, bool>> full;
  for (const auto& link : links_) {
    if (link->server_lives && !link->to_server.empty()) full.emplace_back(link.get(), true);
    if (link->client_lives && !link->to_client.empty()) full.emplace_back(link.get(), false);
  }
  if (full.empty()) return false;
  const auto [link, to_server] = full[rng_.below(full.size())];
  if (to_server) {
    link->deliver_to_server();
  } else {
    const ToClient message = std::move(link->to_client.front());
    link->to_client.pop_front();
    hear(users_[link->user()], *link, message);
  }
  return true;
}

// ---- The server --------------------------------------------------------------------------------

unsigned MemoryWorld::new_session(unsigned user) {
  rtrs::ServerSessionOptions options;
  options.queue_depth = kMemoryDepth;
  options.max_io_size = kIoSize;
  options.max_header_size = kIoSize;
  options.features = rtrs::wire::kFeatureUserMessages | rtrs::wire::kFeatureExactlyOnce |
                     rtrs::wire::kFeatureMemoryPaths | rnbd::wire::kFeaturePassive;
  options.uuid = some_uuid();
  auto session = std::make_unique<Session>(*this);
  session->core = std::make_unique<rtrs::ServerSession>(options, *server_, *session);
  session->core->name = "user" + std::to_string(user);
  sessions_.push_back(std::move(session));
  return static_cast<unsigned>(sessions_.size() - 1);
}

/// It has waited long enough, some day.
void MemoryWorld::lingers(rtrs::ServerSession& session) {
  if (!rng_.chance(300)) return;
  later([core = &session] {
    core->gone() || core->has_live_path() ? void() : core->on_linger_expired();
  });
}

MemoryLink& MemoryWorld::new_link(User& user, rtrs::wire::PathKind kind) {
  rtrs::ServerPathOptions options;
  options.kind = kind;
  options.uuid = some_uuid();
  links_.push_back(std::make_unique<MemoryLink>(
      user.number, *user.session, *of(user).core, options, keys_,
      MemoryLink::Events{.later = [this](Work work) { later(std::move(work)); },
                         .fenced = [this](const MemoryLink& link, const char* why,
                                          bool fault) { fenced(link, why, fault); },
                         .exposes = [this](const MemoryLink& link) { exposes(link); },
                         .released = [this](MemoryLink& link) { released(link); }}));
  return *links_.back();
}

/// M5. A session ends its paths when its client has said goodbye, and half-open ones when it is
/// idle.
void MemoryWorld::fenced(const MemoryLink& link, const char* why, bool fault) {
  say("the server ends a path of user " + std::to_string(link.user()) + ": " + why);
  if (fault) fail(std::string{"a client that keeps the rules is told: "} + why);
  if (!link.is_memory() && !sessions_[link.session()]->said_goodbye)
    fail("the server ends a path for requests: " + std::string{why});
}

/// M4.
void MemoryWorld::exposes(const MemoryLink& link) const {
  if (revoked_.contains(link.uuid())) fail("a path that was revoked gets another key");
}

/// The client finds out some day, if it has not already.
void MemoryWorld::released(MemoryLink& link) {
  later([this, &link] {
    User& user = users_[link.user()];
    if (user.memory == &link) return lose_memory(user);
    if (std::ranges::find(user.links, &link) != user.links.end()) lose(user, &link);
  });
}

/// M3.
void MemoryWorld::takes(brick::Slot slot) const {
  const std::byte* const memory = brick_->memory().at(slot);
  for (const auto& [number, key] : keys_)
    if (key.alive && key.memory.data() == memory)
      fail("memory becomes another block's while a key opens it");
}

// ---- The end -----------------------------------------------------------------------------------

bool MemoryWorld::quiet() const {
  const bool idle = std::ranges::all_of(links_, [](const auto& link) {
    return (!link->server_lives || link->to_server.empty()) &&
           (!link->client_lives || link->to_client.empty());
  });
  return idle && events_.empty() && brick_->unanswered() == 0;
}

/// All users but one have lost their paths for requests and never come back, with memory paths that
/// stand. The last one must get all that there is.
void MemoryWorld::finish() {
  say("all but one go away");
  User& last = users_[rng_.below(users_.size())];
  last.stubborn = false;
  survivor_ = &last;
  for (User& user : users_) {
    if (&user == &last) continue;
    user.away = true;
    while (!user.links.empty()) lose(user, user.links.back());
  }
  std::set<std::uint64_t> mapped;
  for (unsigned i = 0; i < kHealingSteps && mapped.size() < blocks_; ++i) {
    step(/*faults=*/false);
    for (const Map& map : last.maps)
      if (const auto key = keys_.find(map.key); key->second.alive) mapped.insert(map.id);
  }
  if (mapped.size() < blocks_) fail("the only user that is left does not get all blocks");
  last.away = true;
  for (unsigned i = 0; i < kHealingSteps && !quiet(); ++i) step(/*faults=*/false);
  if (!quiet()) fail("something never ends");
  // M7.
  if (last.session && !last.links.empty() && of(last).heard != of(last).recalls)
    fail("a client that has a path never hears a recall");
  for (const auto& link : links_)
    if (link->server_lives) link->close();
  for (unsigned i = 0; i < kHealingSteps && !quiet(); ++i) step(/*faults=*/false);
  for (const auto& session : sessions_) {
    if (!session->core->gone()) session->core->end();
  }
  for (unsigned i = 0; i < kHealingSteps && !quiet(); ++i) step(/*faults=*/false);
  for (const auto& [number, key] : keys_)
    if (key.alive) fail("a key outlives all sessions");
  if (server_->sessions() != 0) fail("a session never ends");
}

}  // namespace sim
