// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/client/mirror/mirror.hpp"

#include <cerrno>
#include <future>
#include <memory>
#include <utility>

namespace rnbd::mirror {
namespace {

/// The wait for the answer to an operator's order.
constexpr std::chrono::seconds kOrderPatience{5};

}  // namespace

Mirror::Mirror(const ClientConfig& config, rtrs::Log log)
    : config_{config},
      links_{config, log,
             [this](unsigned member, std::shared_ptr<OpenMember> open) {
               driver_.locked([&] { driver_.opened(member, std::move(open)); });
             }},
      driver_{config_, links_, std::move(log)} {
  changes_.add_user(this);
}

Mirror::~Mirror() { leave(); }

// ---- Its life -----------------------------------------------------------------------------------

void Mirror::begin() {
  const std::lock_guard lock{mutex_};
  if (std::exchange(running_, true)) return;
  thread_ = std::thread{[this] { driver_.loop(); }};
  for (unsigned i = 0; i < links_.size(); ++i) links_[i].start();
}

tl::expected<void, Failure> Mirror::attach(const Interrupt& interrupt) {
  begin();
  const auto deadline = std::chrono::steady_clock::now() + config_.connect_timeout;
  switch (driver_.wait(deadline, interrupt)) {
    case GroupDriver::Wait::live:
      return {};
    case GroupDriver::Wait::dead:
      return tl::unexpected(Failure{ESTALE, driver_.dead()});
    case GroupDriver::Wait::interrupted:
      return tl::unexpected(Failure{EINTR, "interrupted while the mirror was being attached"});
    case GroupDriver::Wait::late:
      break;
  }
  return tl::unexpected(Failure{
      ETIMEDOUT, "too few members of the mirror can be used: " + why_not_attached(status())});
}

void Mirror::leave() {
  {
    const std::lock_guard lock{mutex_};
    if (!std::exchange(running_, false)) return;
  }
  driver_.locked([this] { driver_.stop(); });
  thread_.join();
}

// ---- Requests -----------------------------------------------------------------------------------

int Mirror::run(const Transfer& transfer, const Interrupt& interrupt) {
  return driver_.run(transfer, nullptr, interrupt);
}

int Mirror::extents(std::uint64_t offset, std::uint64_t length, std::vector<wire::Extent>& extents,
                    const Interrupt& interrupt) {
  const std::uint64_t before = offset % wire::kSectorSize;
  std::vector<wire::Extent> told;
  const Transfer question{.offset = offset - before, .length = length + before};
  if (const int error = driver_.run(question, &told, interrupt)) return error;
  extents = asked_part(told, before, length);
  return extents.empty() ? EIO : 0;
}

std::unique_ptr<rtrs::LaneLoop> Mirror::take_lane(unsigned lane) {
  return std::make_unique<MirrorLane>(shared_from_this(), driver_, lane);
}

// ---- People -------------------------------------------------------------------------------------

MirrorStatus Mirror::status() {
  MirrorStatus status = driver_.status();
  links_.complete(status);
  if (!status.live && status.trouble.empty())
    status.trouble = "too few members: " + why_not_attached(status);
  return status;
}

Mirror::Done Mirror::ask(const std::function<Done()>& question) {
  begin();
  return driver_.locked(question);
}

/// It is decided when the server has recorded it.
Mirror::Done Mirror::force(const std::string& server, bool sure, bool split) {
  begin();
  const MirrorStatus known = status();
  auto begun = ask([&] { return driver_.force(server, sure, split, known); });
  if (!begun) return begun;
  const auto until = std::chrono::steady_clock::now() + kOrderPatience;
  if (driver_.wait(until, {}) == GroupDriver::Wait::live) return {};
  return tl::unexpected(Failure{
      ETIMEDOUT, server + " has not said yet that it has recorded it. It may have, and others wait "
                          "for that decision: see `mirror status`, and repeat it"});
}

Mirror::Done Mirror::discard(const std::string& server) {
  return ask([this, server] { return driver_.discard(server); });
}

Mirror::Done Mirror::add(const rtrs::PathAddress& path, bool overwrite) {
  return ask([this, path, overwrite] { return driver_.add(path, overwrite); });
}

Mirror::Done Mirror::verify(const std::string& from) {
  return ask([this, from] { return driver_.verify(from); });
}

Mirror::Done Mirror::end_verify() {
  return ask([this] { return driver_.end_verify(); });
}

tl::expected<std::string, Failure> Mirror::dissolve(const std::string& server) {
  using Dissolved = GroupDriver::Dissolved;
  begin();
  const auto outcome = std::make_shared<std::promise<Dissolved>>();
  auto answer = outcome->get_future();
  driver_.locked([&] {
    driver_.dissolve(server,
                     [outcome](Dissolved dissolved) { outcome->set_value(std::move(dissolved)); });
  });
  if (answer.wait_for(kOrderPatience) == std::future_status::ready) return answer.get();
  return tl::unexpected(Failure{
      ETIMEDOUT,
      "requests are under way, or servers do not answer; it goes on: see `mirror status`, and "
      "discard a server that hangs"});
}

}  // namespace rnbd::mirror
