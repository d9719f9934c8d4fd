// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/backend/fault.hpp"

#include <cerrno>
#include <optional>
#include <utility>

#include "bridge/backend/chance.hpp"
#include "bridge/backend/specification.hpp"
#include "bridge/backend/wrapper.hpp"

namespace rnbd {

namespace {

struct Rule {
  std::optional<BackendOperation> operation;  ///< none: any
  int error = EIO;
  double probability = 0;
};

struct FaultOptions {
  std::uint64_t seed = 1;
  std::uint64_t nth = 0;  ///< every nth request fails; 0 = none
  std::vector<Rule> rules;
};

/// Decides for all queues which requests fail.
class Fate {
 public:
  explicit Fate(FaultOptions options) : options_{std::move(options)}, chance_{options_.seed} {}

  /// 0 or the errno to fail with.
  int decide(const BackendRequest& request) {
    const std::uint64_t number = requests_.fetch_add(1, std::memory_order_relaxed) + 1;
    if (options_.nth != 0 && number % options_.nth == 0) return EIO;
    for (const Rule& rule : options_.rules) {
      if (rule.operation && *rule.operation != request.operation) continue;
      if (chance_.draw() < rule.probability) return rule.error;
    }
    return 0;
  }

 private:
  const FaultOptions options_;
  Chance chance_;
  std::atomic<std::uint64_t> requests_{0};
};

class FaultQueue final : public BackendQueue {
 public:
  FaultQueue(Fate& fate, std::unique_ptr<BackendQueue> inner)
      : fate_{fate}, inner_{std::move(inner)} {}

  void submit(BackendRequest& request) override {
    const int error = fate_.decide(request);
    error != 0 ? request.done(request, error) : inner_->submit(request);
  }

  bool broken() const override { return inner_->broken(); }

 private:
  Fate& fate_;
  std::unique_ptr<BackendQueue> inner_;
};

class FaultBackend final : public WrapperBackend {
 public:
  FaultBackend(FaultOptions options, std::unique_ptr<Backend> inner)
      : WrapperBackend{std::move(inner)}, fate_{std::move(options)} {}

 private:
  std::unique_ptr<BackendQueue> wrap(std::unique_ptr<BackendQueue> queue, rtrs::Reactor*) override {
    return std::make_unique<FaultQueue>(fate_, std::move(queue));
  }

  Fate fate_;
};

// ---- Options ------------------------------------------------------------------------------------

constexpr std::pair<std::string_view, std::optional<BackendOperation>> kOperations[] = {
    {"any", std::nullopt},
    {"read", BackendOperation::read},
    {"write", BackendOperation::write},
    {"flush", BackendOperation::flush},
    {"discard", BackendOperation::discard},
    {"zero", BackendOperation::write_zeroes},
    {"extents", BackendOperation::extents},
};

constexpr std::pair<std::string_view, int> kErrors[] = {
    {"eio", EIO}, {"enospc", ENOSPC}, {"enomem", ENOMEM}, {"eperm", EPERM}, {"einval", EINVAL},
};

/// "write-eio" as a rule without its probability, or none.
std::optional<Rule> rule_named(std::string_view key) {
  const auto dash = key.find('-');
  if (dash == std::string_view::npos) return std::nullopt;
  for (const auto& [operation_name, operation] : kOperations) {
    if (key.substr(0, dash) != operation_name) continue;
    for (const auto& [error_name, error] : kErrors) {
      if (key.substr(dash + 1) == error_name) return Rule{operation, error, 0};
    }
  }
  return std::nullopt;
}

/// Applies one option. Errors: the mistake in it.
tl::expected<void, Failure> apply(FaultOptions& options, const KeyValue& option) {
  const auto set = [](auto& target, auto value) -> tl::expected<void, Failure> {
    if (!value) return tl::unexpected(value.error());
    target = *value;
    return {};
  };
  if (option.key == "seed") return set(options.seed, parse_number(option.value));
  if (option.key == "nth") return set(options.nth, parse_number(option.value));
  const auto rule = rule_named(option.key);
  if (!rule) {
    return tl::unexpected(Failure{
        EINVAL,
        "unknown option; there are seed=N, nth=N and OPERATION-ERROR=PROBABILITY, with any, read, "
        "write, flush, discard, zero or extents, and eio, enospc, enomem, eperm or "
        "einval, like write-eio=0.01"});
  }
  options.rules.push_back(*rule);
  return set(options.rules.back().probability, parse_probability(option.value));
}

}  // namespace

tl::expected<std::unique_ptr<Backend>, Failure> open_fault(const std::string& specification,
                                                           const BackendOptions& options) {
  const std::string whole = "fault:" + specification;
  const auto parsed = parse_wrapper(specification);
  if (!parsed) return bad_specification(EINVAL, whole, parsed.error().text);
  FaultOptions fault;
  for (const KeyValue& option : parsed->options) {
    const auto applied = apply(fault, option);
    if (!applied) {
      return bad_specification(EINVAL, whole, option.key + ": " + applied.error().text);
    }
  }
  auto inner = open_backend(parsed->inner, options);
  if (!inner) return inner;
  return std::make_unique<FaultBackend>(std::move(fault), std::move(*inner));
}

}  // namespace rnbd
