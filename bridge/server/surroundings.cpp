// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/server/surroundings.hpp"

#include <utility>

namespace rnbd {

namespace {

using Work = std::function<void()>;

void run(const std::function<void(rtrs::Reactor*, Work, Work)>& elsewhere, rtrs::Reactor* reactor,
         Work work, Work then) {
  if (elsewhere) return elsewhere(reactor, std::move(work), std::move(then));
  if (work) work();
  if (then) then();
}

}  // namespace

void Surroundings::run_blocking(rtrs::Reactor* reactor, Work work, Work then) const {
  run(offload, reactor, std::move(work), std::move(then));
}

void Surroundings::run_recording(rtrs::Reactor* reactor, Work work, Work then) const {
  run(record, reactor, std::move(work), std::move(then));
}

void Surroundings::run_later(rtrs::Reactor* reactor, Work work) const {
  if (later) return later(reactor, std::move(work));
  work();
}

void Surroundings::say(rtrs::LogLevel level, const std::string& peer,
                       const std::string& line) const {
  if (log) log(level, peer, line);
}

std::shared_ptr<Meter> Surroundings::meter(const std::string& device,
                                           const rtrs::Reactor* reactor) const {
  return meters != nullptr ? meters->meter(device, reactor) : std::make_shared<Meter>();
}

}  // namespace rnbd
