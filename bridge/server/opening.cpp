// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/server/opening.hpp"

#include <cerrno>
#include <cstring>
#include <utility>

#include "bridge/protocol/printable.hpp"
#include "bridge/server/queue_table.hpp"
#include "bridge/server/session_facts.hpp"
#include "rdma/wire/ensure.hpp"

namespace rnbd {
namespace {

constexpr bool for_all_steps(auto holds) {
  for (const OpenStep step : kOpenSteps) {
    if (!holds(step)) return false;
  }
  return true;
}

// An opening is answered once.
static_assert(for_all_steps([](OpenStep step) {
  return is_end(step) == (step == OpenStep::over || step == OpenStep::late);
}));
// Each step that may hang can take too long, and no other.
static_assert(for_all_steps([](OpenStep step) {
  return may_follow(step, OpenStep::late) == (step != OpenStep::judging && !is_end(step));
}));
// A reservation that has begun ends: nothing is judged again meanwhile.
static_assert(for_all_steps([](OpenStep step) {
  return !reserves(step) || !may_follow(step, OpenStep::judging);
}));

std::string why(int error) {
  switch (error) {
    case ENOENT:
      return "there is no such export";
    case EROFS:
      return "it is read-only";
    case EBUSY:
      return "somebody else has its storage";
    case ESTALE:
      return "somebody else may have written since this client looked at it";
    case EAGAIN:
      return "its storage is not there yet";
    default:
      return std::strerror(error);
  }
}

}  // namespace

Failure refusal_of(const std::string& name, int error) {
  return {error, in_quotes(name) + ": " + why(error)};
}

Failure directory_hangs(const std::string& name) {
  return {EAGAIN, in_quotes(name) +
                      ": cannot record who writes to it: the state directory does not answer"};
}

Failure file_hangs(const std::string& name) {
  return {EAGAIN, in_quotes(name) + ": opening its file hangs; look at its disk or mount"};
}

Failure server_lacks(const std::string& name, int error) {
  return {error, in_quotes(name) + ": this server lacks what that takes: " + std::strerror(error) +
                     " (LimitNOFILE=, TasksMax=, MemoryMax= of its unit)"};
}

void record_leaving(ExportCatalogue& catalogue, const Services& services, rtrs::Reactor* reactor) {
  if (!catalogue.reservations().has_left()) return;
  services.record(reactor, [&catalogue] { catalogue.reservations().record_left(); }, {});
}

Opening::Opening(rtrs::ServerRequest& open, std::uint32_t open_number, wire::OpenRequest what,
                 OpenKind how, const SessionParts& session)
    : request{open},
      number{open_number},
      wanted{std::move(what)},
      kind{how},
      access{wanted.mode, how == OpenKind::again ? session.facts.uuid : wire::Uuid{}},
      catalogue{session.catalogue},
      services{session.services},
      reactor{session.queues.reactor()} {}

void Opening::enter(OpenStep next) {
  RTRS_ENSURE(may_follow(step(), next));
  step_ = next;
}

void Opening::end() {
  if (is_late()) return;
  enter(OpenStep::over);
  timer.reset();
}

void Opening::let_go() {
  if (file && *file) lease.emplace(std::move(**file));
  file.reset();
  if (!lease) return;
  std::shared_ptr<Storage> storage = lease->storage();
  lease.reset();
  // Closing a file may block as long as opening it.
  services.offload(reactor,
                   [&catalogue = catalogue, storage = std::move(storage)]() mutable {
                     catalogue.storages().close(std::move(storage));
                   },
                   {});
  record_leaving(catalogue, services, reactor);
}

}  // namespace rnbd
