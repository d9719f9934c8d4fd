// SPDX-License-Identifier: BSD-3-Clause
// mode=passive, for a client that knows nothing of bricks.
#include <algorithm>
#include <mutex>
#include <utility>

#include "bridge/client/annex.hpp"
#include "bridge/client/brick/passive_disk.hpp"
#include "bridge/client/brick/remote_brick.hpp"
#include "bridge/protocol/printable.hpp"

namespace rnbd {
namespace {

/// All users of a device share its maps.
///
/// Threads: any.
class PassiveWrapper final : public DeviceWrapper {
 public:
  PassiveWrapper(const ClientConfig& config, const rtrs::Log& log) : config_{config}, log_{log} {}

  std::unique_ptr<Disk> wrap(Session& session, std::unique_ptr<RemoteDevice> device,
                             const Interrupt& interrupt) override {
    const std::lock_guard lock{mutex_};
    std::erase_if(bricks_, [](const auto& brick) { return brick.expired(); });
    for (const auto& known : bricks_) {
      const auto brick = known.lock();
      if (brick != nullptr && brick->is_of(*device))
        return std::make_unique<PassiveDisk>(std::move(device), brick);
    }
    auto brick = PassiveBrick::open(*device, session, log_, interrupt);
    if (!brick) {
      if (log_) {
        log_(rtrs::LogLevel::warning, config_.server() + ": " + brick.error().text +
                                          "; mode=passive has no effect on " +
                                          in_quotes(device->name()));
      }
      return device;
    }
    bricks_.push_back(*brick);
    return std::make_unique<PassiveDisk>(std::move(device), *std::move(brick));
  }

 private:
  const ClientConfig& config_;
  const rtrs::Log log_;
  std::mutex mutex_;                                 ///< held while a brick is opened
  std::vector<std::weak_ptr<PassiveBrick>> bricks_;  ///< guarded by mutex_
};

std::string set_mode(ClientDraft& draft, const std::string& value) {
  static constexpr OptionWord<std::uint32_t> kModes[] = {{"two-sided", 0},
                                                         {"passive", kBrickFeatures}};
  return set_word(draft.config.annex_features, value, kModes);
}

constexpr ClientOption kOptions[] = {
    {{"mode", "two-sided|passive", "passive",
      "passive: read and write the blocks of a brick without the server's processor, where that "
      "is possible (default two-sided). Also in the URI: ?mode=passive.",
      set_mode},
     OptionPlace::both},
};

std::string complete(ClientDraft& draft) {
  if ((draft.config.annex_features & kBrickFeatures) == 0 || draft.config.extensions) return "";
  return "mode=passive contradicts extensions=false, without which no server has bricks";
}

std::unique_ptr<DeviceWrapper> wrapper(const ClientConfig& config, const rtrs::Log& log) {
  if ((config.annex_features & kBrickFeatures) == 0) return nullptr;
  return std::make_unique<PassiveWrapper>(config, log);
}

}  // namespace

extern const ClientAnnex kPassiveAnnex;  // for annexes.cpp
constinit const ClientAnnex kPassiveAnnex{.options = kOptions,
                                          .complete = complete,
                                          .source = nullptr,
                                          .wrapper = wrapper,
                                          .commands = nullptr};

}  // namespace rnbd
