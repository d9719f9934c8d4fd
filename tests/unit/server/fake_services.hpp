// SPDX-License-Identifier: BSD-3-Clause
// Services of a test, which may replace each of them.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "bridge/server/services.hpp"

namespace rnbd::test {

struct FakeServices final : Services, OtherSessions {
  bool has_event_loop() const override { return on_later != nullptr; }
  void later(rtrs::Reactor* reactor, Work work) const override {
    on_later ? on_later(reactor, std::move(work)) : Services::later(reactor, std::move(work));
  }
  std::shared_ptr<void> after(rtrs::Reactor* reactor, rtrs::Duration time,
                              Work work) const override {
    return on_after ? on_after(reactor, time, std::move(work)) : nullptr;
  }
  void offload(rtrs::Reactor* reactor, Work work, Work then) const override {
    if (on_offload) return on_offload(reactor, std::move(work), std::move(then));
    Services::offload(reactor, std::move(work), std::move(then));
  }
  void record(rtrs::Reactor* reactor, Work work, Work then) const override {
    if (on_record) return on_record(reactor, std::move(work), std::move(then));
    Services::offload(reactor, std::move(work), std::move(then));
  }
  void say(rtrs::LogLevel, const std::string&, const std::string& line) const override {
    if (on_line) on_line(line);
  }

  // Where `sessions` is set to this.
  void reclaim(rtrs::Reactor* reactor, const WriterCount* storage, const std::string& reason,
               std::function<void()> then) override {
    on_reclaim ? on_reclaim(reactor, storage, reason, std::move(then)) : then();
  }
  void survey(rtrs::Reactor* reactor, const WriterCount* storage,
              std::function<void(bool)> then) override {
    on_survey ? on_survey(reactor, storage, std::move(then)) : then(false);
  }
  void drain(rtrs::Reactor*, const WriterCount*, const Device*,
             std::function<void()> then) override {
    then();
  }
  void visit(rtrs::Reactor*, rtrs::ServerSession*,
             std::function<void(rtrs::ServerSession&)>) override {}

  std::function<void(rtrs::Reactor*, Work)> on_later;
  std::function<std::shared_ptr<void>(rtrs::Reactor*, rtrs::Duration, Work)> on_after;
  std::function<void(rtrs::Reactor*, Work, Work)> on_offload, on_record;
  std::function<void(const std::string& line)> on_line;
  std::function<void(rtrs::Reactor*, const WriterCount*, const std::string&, std::function<void()>)>
      on_reclaim;
  std::function<void(rtrs::Reactor*, const WriterCount*, std::function<void(bool)>)> on_survey;
};

}  // namespace rnbd::test
