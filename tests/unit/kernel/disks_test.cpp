// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/kernel/disks.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace rnbd::kernel::disks_test {
namespace {

using namespace std::chrono_literals;
using std::chrono::steady_clock;

template <class Fits>
bool eventually(Fits fits) {
  const auto limit = steady_clock::now() + 20s;
  while (!fits()) {
    if (steady_clock::now() > limit) return false;
    std::this_thread::sleep_for(1ms);
  }
  return true;
}

/// The world of one disk, which the test changes while the disk is used.
struct World {
  std::mutex mutex;
  std::condition_variable changed;
  int error = 0;       ///< of the next attempts
  bool hangs = false;  ///< attempts wait
  bool there = false;  ///< the kernel has it
  bool kernel_had_it = false;
  bool interrupted = false;
  KernelDisk::News news = KernelDisk::News::none;
  std::chrono::milliseconds patience{};  ///< of the last attempt
  int attempts = 0, looks = 0, asks = 0, growths = 0, users = 0, most_users = 0;
  std::vector<std::string> ends;

  template <class Change>
  void set(Change change) {
    const std::lock_guard lock{mutex};
    change(*this);
    changed.notify_all();
  }
  template <class Get>
  auto get(Get member) {
    const std::lock_guard lock{mutex};
    return this->*member;
  }
};

class FakeDisk final : public KernelDisk {
 public:
  explicit FakeDisk(std::shared_ptr<World> world) : world_{std::move(world)} {}

  tl::expected<void, rtrs::Failure> attempt(std::chrono::milliseconds patience) override {
    std::unique_lock lock{world_->mutex};
    world_->patience = patience;
    const Use use{*world_};
    ++world_->attempts;
    world_->changed.wait(lock, [this] { return !world_->hangs || world_->interrupted; });
    if (world_->interrupted) return tl::unexpected(rtrs::Failure{EINTR, "interrupted"});
    if (world_->error != 0) return tl::unexpected(rtrs::Failure{world_->error, "no way"});
    world_->there = true;
    return {};
  }
  bool waits_for_server() const override { return world_->kernel_had_it; }
  News look(bool ask) override {
    const std::lock_guard lock{world_->mutex};
    const Use use{*world_};
    ++world_->looks;
    world_->asks += ask ? 1 : 0;
    const News news = world_->news;
    if (news != News::silent) world_->news = News::none;
    if (news == News::unmapped) world_->there = false;
    return news;
  }
  void grow() override {
    const std::lock_guard lock{world_->mutex};
    ++world_->growths;
  }
  void interrupt() override {
    world_->set([](World& world) { world.interrupted = true; });
  }
  void leave() override {
    const std::lock_guard lock{world_->mutex};
    const Use use{*world_};
    world_->there = false;
    world_->ends.emplace_back("left");
  }
  void begin_hand_over() override {
    world_->set([](World& world) { world.ends.emplace_back("begun"); });
  }
  std::optional<Kept> end_hand_over(steady_clock::time_point) override {
    world_->set([](World& world) { world.ends.emplace_back("handed"); });
    return Kept{1, 2};
  }
  std::string device() const override { return "/dev/nbd9"; }

 private:
  /// Counts the calls at the same time, with the lock held.
  struct Use {
    explicit Use(World& world) : world_{world} {
      world_.most_users = std::max(world_.most_users, ++world_.users);
    }
    ~Use() { --world_.users; }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    World& world_;
  };
  std::shared_ptr<World> world_;
};

struct Bench {
  std::atomic<bool> has_path{true};
  std::atomic<int> unmapped{0};
  Disks disks{{.patience = 1000ms,
               .patience_on_path = 700ms,
               .has_path = [this] { return has_path.load(); },
               .on_unmapped = [this] { ++unmapped; },
               .look_every = 5ms,
               .first_pause = 2ms,
               .last_pause = 8ms}};

  std::shared_ptr<World> add(const std::string& name, int error = 0) {
    auto world = std::make_shared<World>();
    world->error = error;
    REQUIRE(disks.add(name, "export-" + name, std::make_shared<FakeDisk>(world)));
    return world;
  }
  /// Its state; "none": it is not in the list.
  std::string state(const std::string& name) const {
    for (const DiskStatus& disk : disks.status())
      if (disk.name == name) return name_of(disk.state);
    return "none";
  }
  bool comes_to(const std::string& name, const std::string& wanted) const {
    return eventually([&] { return state(name) == wanted; });
  }
};

TEST_CASE("disks: each one is served, and told of") {
  Bench bench;
  bench.add("a");
  bench.add("b");
  bench.disks.await_attempts([] { return false; });
  const auto all = bench.disks.status();
  REQUIRE(all.size() == 2);
  CHECK(all[0].name == "a");
  CHECK(all[0].exported == "export-a");
  CHECK(all[0].device == "/dev/nbd9");
  CHECK(all[0].state == DiskState::serving);
  CHECK(bench.state("b") == "serving");
}

TEST_CASE("disks: an attempt has the time that is told, with a path and without one") {
  Bench bench;
  const auto patience_with = [&](bool path, const std::string& name) {
    bench.has_path = path;
    const auto world = bench.add(name);
    CHECK(bench.comes_to(name, "serving"));
    return world->get(&World::patience);
  };
  CHECK(patience_with(true, "a") == 700ms);
  CHECK(patience_with(false, "b") == 1000ms);
}

TEST_CASE("disks: one that fails, hangs or is another one keeps nobody from anything") {
  Bench bench;
  const auto failing = bench.add("failing", ENOENT);
  const auto other = bench.add("other", ESTALE);
  auto hanging = std::make_shared<World>();
  hanging->hangs = true;
  bench.disks.add("hanging", "x", std::make_shared<FakeDisk>(hanging));
  bench.disks.refuse("wrong", "", "its file is wrong");
  const auto good = bench.add("good");
  CHECK(bench.comes_to("good", "serving"));
  CHECK(bench.comes_to("failing", "waiting"));
  CHECK(bench.comes_to("other", "refused"));
  CHECK(bench.state("wrong") == "refused");
  CHECK(bench.state("hanging") == "connecting");
  CHECK(eventually([&] { return failing->get(&World::attempts) > 3; }));
  CHECK(other->get(&World::attempts) == 1);
  const int looks = good->get(&World::looks);
  CHECK(eventually([&] { return good->get(&World::looks) > looks + 3; }));
  failing->set([](World& world) { world.error = 0; });
  CHECK(bench.comes_to("failing", "serving"));
}

TEST_CASE("disks: a lost socket is replaced, and growth is passed on") {
  Bench bench;
  const auto world = bench.add("a");
  CHECK(bench.comes_to("a", "serving"));
  world->set([](World& each) { each.news = KernelDisk::News::lost; });
  CHECK(eventually([&] { return world->get(&World::attempts) == 2; }));
  CHECK(bench.comes_to("a", "serving"));
  world->set([](World& each) { each.news = KernelDisk::News::grown; });
  CHECK(eventually([&] { return world->get(&World::growths) == 1; }));
}

TEST_CASE("disks: one that another program has unmapped stays away until it is added again") {
  Bench bench;
  const auto world = bench.add("a");
  CHECK(bench.comes_to("a", "serving"));
  world->set([](World& each) { each.news = KernelDisk::News::unmapped; });
  CHECK(bench.comes_to("a", "unmapped"));
  CHECK(bench.unmapped == 1);
  std::this_thread::sleep_for(30ms);
  CHECK(world->get(&World::attempts) == 1);
  bench.add("a");
  CHECK(bench.comes_to("a", "serving"));
}

TEST_CASE("disks: a disk that is served or tried is not added twice") {
  Bench bench;
  bench.add("a");
  CHECK(bench.comes_to("a", "serving"));
  CHECK_FALSE(bench.disks.add("a", "x", std::make_shared<FakeDisk>(std::make_shared<World>())));
  bench.disks.refuse("a", "", "its file is wrong");
  CHECK(bench.state("a") == "serving");
}

TEST_CASE("disks: a disk is taken away, also in the midst of an attempt, and others stay") {
  Bench bench;
  const auto served = bench.add("served");
  bench.add("stays");
  auto hanging = std::make_shared<World>();
  hanging->hangs = true;
  bench.disks.add("hanging", "x", std::make_shared<FakeDisk>(hanging));
  bench.disks.refuse("wrong", "", "its file is wrong");
  CHECK(bench.comes_to("served", "serving"));
  CHECK(eventually([&] { return hanging->get(&World::attempts) == 1; }));
  for (const char* name : {"served", "hanging", "wrong"}) {
    CHECK(bench.disks.remove(name));
    CHECK(bench.comes_to(name, "none"));
  }
  CHECK_FALSE(bench.disks.remove("served"));
  CHECK(served->get(&World::ends) == std::vector<std::string>{"left"});
  CHECK(hanging->get(&World::ends) == std::vector<std::string>{"left"});
  CHECK(bench.comes_to("stays", "serving"));
}

TEST_CASE("disks: no size is asked for without a path, and after the first server that is silent") {
  Bench bench;
  const auto world = bench.add("a");
  CHECK(bench.comes_to("a", "serving"));
  CHECK(eventually([&] { return world->get(&World::asks) > 2; }));
  bench.has_path = false;
  std::this_thread::sleep_for(20ms);  // a round may be under way
  const int asks = world->get(&World::asks), looks = world->get(&World::looks);
  CHECK(eventually([&] { return world->get(&World::looks) > looks + 3; }));
  CHECK(world->get(&World::asks) == asks);
  // In the order of the list, "a" hears nothing, so "b" is not asked.
  const auto next = bench.add("b");
  CHECK(bench.comes_to("b", "serving"));
  world->set([](World& each) { each.news = KernelDisk::News::silent; });
  bench.has_path = true;
  const int before = world->get(&World::asks), next_before = next->get(&World::asks);
  CHECK(eventually([&] { return world->get(&World::asks) > before + 3; }));
  CHECK(next->get(&World::asks) == next_before);
}

TEST_CASE("disks: of many 32 are asked for their size at each look, in turn") {
  Bench bench;
  std::vector<std::shared_ptr<World>> worlds;
  for (int i = 0; i < 100; ++i) worlds.push_back(bench.add("disk" + std::to_string(i)));
  for (int i = 0; i < 100; ++i) CHECK(bench.comes_to("disk" + std::to_string(i), "serving"));
  const auto asked = [&] {
    int sum = 0;
    for (const auto& world : worlds) sum += world->get(&World::asks);
    return sum;
  };
  const int looks = worlds[0]->get(&World::looks), before = asked();
  CHECK(eventually([&] { return worlds[0]->get(&World::looks) >= looks + 10; }));
  const int more = asked() - before;
  CHECK(more <= 32 * (worlds[0]->get(&World::looks) - looks + 1));
  for (const auto& world : worlds) {
    CHECK(eventually([&] { return world->get(&World::asks) > 0; }));
  }
}

TEST_CASE(
    "disks: nothing is begun after the end, and all that are served are handed over at once") {
  Bench bench;
  const auto a = bench.add("a"), b = bench.add("b"), failing = bench.add("failing", ENOENT);
  CHECK(bench.comes_to("a", "serving"));
  CHECK(bench.comes_to("b", "serving"));
  CHECK(bench.comes_to("failing", "waiting"));
  bench.disks.stop(steady_clock::now() + 5s);
  const auto left = bench.disks.hand_over(steady_clock::now() + 5s);
  REQUIRE(left.size() == 2);
  CHECK(left[0].name == "a");
  CHECK(left[1].kept.has_value());
  CHECK(a->get(&World::ends) == std::vector<std::string>{"begun", "handed"});
  CHECK(failing->get(&World::ends).empty());
  CHECK_FALSE(bench.disks.add("late", "x", std::make_shared<FakeDisk>(std::make_shared<World>())));
  CHECK(b->get(&World::most_users) == 1);
}

TEST_CASE("disks: at the end all of them are taken away where no successor comes") {
  Bench bench;
  const auto a = bench.add("a"), b = bench.add("b");
  CHECK(bench.comes_to("a", "serving"));
  CHECK(bench.comes_to("b", "serving"));
  bench.disks.stop(steady_clock::now() + 5s);
  bench.disks.leave(steady_clock::now() + 5s);
  CHECK(a->get(&World::ends) == std::vector<std::string>{"left"});
  CHECK_FALSE(b->get(&World::there));
}

TEST_CASE("disks: a hundred have no thread each") {
  const auto threads = [] {
    std::size_t count = 0;
    for ([[maybe_unused]] const auto& each : std::filesystem::directory_iterator{"/proc/self/task"})
      ++count;
    return count;
  };
  const std::size_t before = threads();
  Bench bench;
  for (int i = 0; i < 100; ++i) bench.add("disk" + std::to_string(i));
  bench.disks.await_attempts([] { return false; });
  // Those of the attempts end when they are idle.
  CHECK(eventually([&] { return threads() <= before + 2; }));
}

}  // namespace
}  // namespace rnbd::kernel::disks_test
