// SPDX-License-Identifier: BSD-3-Clause
// The parts of a mirror's client, each by its own rules.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "bridge/client/mirror/activity.hpp"
#include "bridge/client/mirror/disk_failures.hpp"
#include "bridge/client/mirror/group.hpp"
#include "bridge/client/mirror/group_driver.hpp"
#include "bridge/client/mirror/member_links.hpp"
#include "bridge/client/mirror/membership.hpp"
#include "bridge/client/mirror/mirror_config.hpp"
#include "bridge/client/mirror/mirror_status.hpp"
#include "bridge/client/mirror/missed.hpp"
#include "bridge/client/mirror/record_terms.hpp"
#include "bridge/client/mirror/resync_pace.hpp"
#include "bridge/client/mirror/server_table.hpp"
#include "bridge/client/mirror/standing_report.hpp"
#include "bridge/client/mirror/vote_pause.hpp"
#include "bridge/protocol/mirror_messages.hpp"

using namespace rnbd::mirror;

namespace {

/// Four regions of 10 sectors, the last one with 5.
const Regions kRegions{10, 35};

RegionMap of(std::initializer_list<std::uint32_t> regions) {
  RegionMap map{kRegions.count()};
  for (const std::uint32_t region : regions) map.add(region);
  return map;
}

constexpr MemberSet kBoth = 3;

}  // namespace

TEST_CASE("regions: a range touches all regions from its first to its last sector") {
  CHECK(kRegions.first({9, 10}) == 0);
  CHECK(kRegions.last({9, 10}) == 0);
  CHECK(kRegions.last({9, 11}) == 1);
  CHECK(kRegions.last({20, 20}) == 2);
  CHECK(kRegions.range_of(2).begin == 20);
  CHECK(kRegions.range_of(2).end == 30);
  CHECK(kRegions.range_of(3).end == 35);
  RegionMap map = of({});
  kRegions.add({15, 31}, map);
  CHECK(map.words() == of({1, 2, 3}).words());
  CHECK(kRegions.meets({0, 11}, of({1})));
  CHECK_FALSE(kRegions.meets({0, 10}, of({1})));
  CHECK_FALSE(kRegions.meets({30, 35}, of({1})));
  CHECK_FALSE(kRegions.meets({0, 35}, RegionMap{}));
}

TEST_CASE("activity: a region leaves the logs when nothing touched it since the flush") {
  Activity activity{kRegions};
  CHECK(activity.cold());
  activity.log({0, 20});
  CHECK_FALSE(activity.cold());
  REQUIRE(activity.begin(of({}), kBoth));
  activity.touch({10, 11});
  CHECK_FALSE(activity.is_leaving({0, 1}));  // a change may begin while they flush
  CHECK_FALSE(activity.flushed(0));
  CHECK(activity.flushed(1));
  CHECK(activity.leaving().words() == of({0}).words());
  activity.clear(kBoth);
  CHECK(activity.is_leaving({0, 1}));
  CHECK_FALSE(activity.is_leaving({10, 11}));
  CHECK_FALSE(activity.cleared(1));
  CHECK(activity.cleared(0));
  CHECK(activity.idle());
  CHECK_FALSE(activity.is_leaving({0, 1}));
  CHECK_FALSE(activity.cold());  // region 1 is still in
}

TEST_CASE("activity: regions that are kept do not leave") {
  Activity activity{kRegions};
  activity.add(of({2}));
  CHECK_FALSE(activity.begin(of({2}), kBoth));
  CHECK(activity.idle());
}

TEST_CASE("activity: a lost member ends the flush, but not the way out of the logs") {
  Activity activity{kRegions};
  activity.log({0, 1});
  REQUIRE(activity.begin(of({}), kBoth));
  CHECK_FALSE(activity.lost(0));
  CHECK(activity.idle());
  CHECK_FALSE(activity.flushed(1));
  CHECK_FALSE(activity.cold());

  REQUIRE(activity.begin(of({}), kBoth));
  CHECK_FALSE(activity.flushed(0));
  CHECK_FALSE(activity.lost(0));  // also if it has flushed
  CHECK_FALSE(activity.flushed(1));

  REQUIRE(activity.begin(of({}), kBoth));
  CHECK_FALSE(activity.flushed(0));
  REQUIRE(activity.flushed(1));
  activity.clear(kBoth);
  CHECK_FALSE(activity.lost(0));
  CHECK(activity.is_leaving({0, 1}));  // until the other one has answered
  CHECK(activity.lost(1));
  CHECK(activity.cold());
}

TEST_CASE("activity: with no member left to clear them, regions stay in") {
  Activity activity{kRegions};
  activity.log({0, 1});
  REQUIRE(activity.begin(of({}), bit(0)));
  REQUIRE(activity.flushed(0));
  activity.clear(0);
  CHECK(activity.idle());
  CHECK_FALSE(activity.cold());
}

TEST_CASE("operations: those of the group itself have numbers that users cannot have") {
  Operations operations;
  operations.add(7) = {.kind = OperationKind::write, .sent = kBoth, .acked = bit(1)};
  const std::uint64_t own = operations.next_own();
  CHECK(own >= Operations::kOwn);
  operations.add(own) = {.kind = OperationKind::copy, .region = 3, .target = 1};
  CHECK(operations.has_own(OperationKind::copy, 3, 1));
  CHECK_FALSE(operations.has_own(OperationKind::copy, 3, 0));
  CHECK(operations.none_under_way());
  operations.at(7).step = Operation::Step::writing;
  CHECK_FALSE(operations.none_under_way());
  operations.forget(1);
  CHECK(operations.at(7).sent == bit(0));
  CHECK(operations.at(7).acked == 0);
  CHECK(operations.erase_own() == std::vector<std::uint64_t>{own});
  CHECK(operations.numbers() == std::vector<std::uint64_t>{7});
  CHECK(operations.next_own() != own);
}

namespace {

struct Recorder : GroupHost {
  std::vector<std::uint64_t> tags;
  void send(const Command& command) override { tags.push_back(command.tag); }
  void drop(unsigned /*member*/) override {}
  void attached() override {}
  void done(std::uint64_t /*operation*/) override {}
  void failed(std::uint64_t /*operation*/, int /*error*/) override {}
  MemberSet same(std::uint64_t /*operation*/, MemberSet members, unsigned /*source*/) override {
    return members;
  }
  void differs(const Difference& /*found*/) override {}
  void grown() override {}
  void not_grown(unsigned /*member*/, int /*error*/) override {}
  void dissolved(int /*error*/) override {}
  bool may_copy(unsigned /*under_way*/) override { return true; }
  bool has_requests() override { return false; }
  MemberSet leased() override { return 0; }
  bool leases_ended() override { return true; }
  void over() override {}
  void superseded() override {}
};

}  // namespace

TEST_CASE("pooled map: values keep their places, and their memory is used again") {
  PooledMap<std::vector<int>> map;
  std::vector<int>& second = map.add(2);
  map.add(1).assign(100, 7);
  const int* const memory = map.at(1).data();
  map.erase(1);
  CHECK_FALSE(map.contains(1));
  CHECK(map.add(9).data() == memory);
  CHECK(&map.at(2) == &second);
  CHECK(map.begin()->first == 2);
  CHECK_FALSE(map.take(3));
  CHECK(map.take(9)->size() == 100);
  map.clear();
  CHECK(map.empty());
}

TEST_CASE("missed: parts of regions that changed since the loss, and whole ones that were hot") {
  const Regions regions{2048, 3 * 2048 + 100};
  Missed missed{regions, 2};  // parts of 32 sectors
  RegionMap hot{4};
  hot.add(2);
  const Range first{0, 512}, all{0, 2048};
  missed.changed(bit(1), first);
  CHECK(missed.is_whole(1, 0));  // it was never in step
  missed.begin(1, hot);
  CHECK(missed.is_whole(1, 0));  // a record may name it all the same
  missed.changed(bit(1), {70, 80});
  missed.changed(bit(0), {1000, 1200});
  CHECK_FALSE(missed.is_whole(1, 0));
  CHECK(missed.is_whole(1, 2));
  CHECK(missed.is_whole(0, 0));
  CHECK(missed.lacking(1, all).begin == 64);
  CHECK(missed.lacking(1, all).end == 96);
  const Range none = missed.lacking(1, {512, 1024});
  CHECK(none.begin == none.end);
  missed.changed(bit(1), {2000, 2100});  // over the border
  CHECK(missed.lacking(1, all).end == 2048);
  CHECK(missed.lacking(1, {2048, 4096}).begin == 2048);
  CHECK(missed.lacking(1, {2048, 4096}).end == 2112);
  missed.changed(bit(1), {6144, 6244});  // the short one at the end
  CHECK(missed.lacking(1, {6144, 6244}).end == 6244);
  CHECK(missed.is_whole(1, 3));
  missed.changed(bit(1), {2112, 4096});  // all parts, one after the other
  CHECK(missed.is_whole(1, 1));
  SUBCASE("a second loss adds to it") {
    RegionMap more{4};
    more.add(0);
    missed.begin(1, more);
    CHECK(missed.is_whole(1, 0));
    CHECK(missed.is_whole(1, 2));
  }
  SUBCASE("nothing is known any more") {
    missed.forget(1);
    missed.add_whole(1, hot);
    CHECK(missed.is_whole(1, 3));
  }
}

TEST_CASE("sent commands: an answer counts once, and not for a member that was forgotten") {
  Recorder host;
  SentCommands sent{host};
  Command command;
  sent.post(command, {.member = 0, .order = Order::write, .operation = 5});
  sent.post(command, {.member = 1, .order = Order::flush});
  REQUIRE(host.tags.size() == 2);
  CHECK(host.tags[0] != host.tags[1]);
  CHECK(sent.written() == bit(0));
  CHECK(sent.has_flush());
  sent.forget(1);
  CHECK_FALSE(sent.has_flush());
  CHECK_FALSE(sent.answered(host.tags[1]));
  const auto answered = sent.answered(host.tags[0]);
  REQUIRE(answered);
  CHECK(answered->operation == 5);
  CHECK_FALSE(sent.answered(host.tags[0]));
}

TEST_CASE("standing report: each tenth of a resync, a return and a loss are said once") {
  using Standing = Membership::Standing;
  std::vector<std::string> lines;
  StandingReport report{"disk0",
                        [&](rtrs::LogLevel, const std::string& line) { lines.push_back(line); }, 2};
  const auto resync = [&](std::uint32_t left) {
    report.progress(1, "b:1", {Standing::resync, left}, 20);
  };
  resync(100);
  resync(95);
  resync(90);
  resync(89);
  CHECK(lines == std::vector<std::string>{
                     "mirror disk0: b:1 is being brought up to date: 0 %, 100 MiB left",
                     "mirror disk0: b:1 is being brought up to date: 10 %, 90 MiB left"});
  CHECK(report.to_copy(1) == 100);
  lines.clear();
  for (int i = 0; i < 2; ++i) report.progress(1, "b:1", {Standing::in_step, 0}, 20);
  CHECK(lines == std::vector<std::string>{"mirror disk0: b:1 is in step"});
  CHECK(report.returns() == 1);
  CHECK(report.to_copy(1) == 0);
  lines.clear();
  report.lost(1, "b:1", "no path to it works any more", 0);
  CHECK(lines == std::vector<std::string>{
                     "mirror disk0: b:1 is lost; the others go on: no path to it works any more"});
  CHECK(report.losses() == 1);
}

TEST_CASE("standing report: servers whose disks have the same UUID are said once") {
  std::vector<std::string> lines;
  StandingReport report{"disk0",
                        [&](rtrs::LogLevel, const std::string& line) { lines.push_back(line); }, 2};
  report.same_disk("a:1", "b:1");
  report.same_disk("b:1", "a:1");
  REQUIRE(lines.size() == 1);
  CHECK(lines.front().starts_with("mirror disk0: a:1 and b:1 have disks with the same UUID"));
}

TEST_CASE("disk failures: the first one is forgiven, and each further one costs more time") {
  using std::chrono::minutes;
  DiskFailures failures;
  const DiskFailures::Clock::time_point start{minutes{1000}};
  CHECK(failures.add(start) == minutes{0});
  CHECK(failures.add(start) == minutes{1});
  CHECK(failures.add(start + minutes{2}) == minutes{5});
  CHECK(failures.add(start + minutes{10}) == minutes{30});
  CHECK(failures.add(start + minutes{69}) == minutes{30});
  CHECK(failures.add(start + minutes{129}) == minutes{0});  // after an hour without one
  CHECK(failures.add(start + minutes{130}) == minutes{1});
}

TEST_CASE(
    "vote pause: it grows with each failure in a row, and a mirror that attaches waits little") {
  using std::chrono::seconds;
  VotePause pause;
  CHECK(pause.after_loss(true) == seconds{10});
  CHECK(pause.after_loss(false) == seconds{0});
  for (const auto& [live, attaching] :
       {std::pair{10, 1}, {20, 2}, {40, 4}, {80, 8}, {160, 8}, {320, 8}, {320, 8}}) {
    pause.failed();
    CHECK(pause.after_loss(true) == seconds{live});
    CHECK(pause.after_loss(false) == seconds{attaching});
  }
  pause.recorded();
  CHECK(pause.after_loss(true) == seconds{10});
  CHECK(pause.after_loss(false) == seconds{0});
}

TEST_CASE("resync pace: it stalls when there is no less to copy for 10 seconds") {
  using std::chrono::seconds;
  using Standing = Membership::Standing;
  const ResyncPace::Clock::time_point start{};
  ResyncPace pace;
  for (unsigned second = 0; second < 10; ++second) {
    pace.add(start + seconds{second}, {Standing::resync, 1000});
    CHECK_FALSE(pace.stalls());
  }
  pace.add(start + seconds{10}, {Standing::resync, 1000});
  CHECK(pace.stalls());
  pace.add(start + seconds{11}, {Standing::resync, 999});
  CHECK_FALSE(pace.stalls());
  pace.add(start + seconds{12}, {Standing::in_step, 0});
  CHECK_FALSE(pace.stalls());
}

TEST_CASE("resync pace: it is that of the last 10 seconds") {
  using std::chrono::milliseconds;
  using std::chrono::seconds;
  using Standing = Membership::Standing;
  ResyncPace pace;
  const ResyncPace::Clock::time_point start{seconds{1000}};
  pace.add(start, {Standing::resync, 1000});
  CHECK(pace.regions_per_second() == 0);
  pace.add(start + milliseconds{500}, {Standing::resync, 500});
  CHECK(pace.regions_per_second() == 0);  // too soon to tell
  for (unsigned second = 1; second <= 5; ++second)
    pace.add(start + seconds{second}, {Standing::resync, 1000 - 10 * second});
  CHECK(pace.regions_per_second() == 10);
  for (unsigned second = 6; second <= 20; ++second)
    pace.add(start + seconds{second}, {Standing::resync, 950 - 20 * (second - 5)});
  CHECK(pace.regions_per_second() == 20);
  for (unsigned second = 21; second <= 31; ++second)
    pace.add(start + seconds{second}, {Standing::resync, 800});  // it goes backward, and stops
  CHECK(pace.regions_per_second() == 0);
  pace.add(start + seconds{32}, {Standing::in_step, 0});
  pace.add(start + seconds{33}, {Standing::resync, 10});
  CHECK(pace.regions_per_second() == 0);
}

TEST_CASE("own terms: before a view of its own is in force, nobody supersedes the client") {
  OwnTerms terms;
  CHECK_FALSE(terms.superseded_by(7));
  terms.proposed(9);
  CHECK_FALSE(terms.superseded_by(12));
  terms.in_force(9);
  CHECK_FALSE(terms.superseded_by(7));
  CHECK_FALSE(terms.superseded_by(9));
  CHECK(terms.superseded_by(12));
}

TEST_CASE("own terms: a view that the client made itself is no other client's") {
  OwnTerms terms;
  terms.proposed(2);
  terms.in_force(2);
  terms.proposed(4);  // never in force, but a member may have recorded it
  terms.proposed(6);
  terms.proposed(6);
  CHECK_FALSE(terms.superseded_by(4));
  CHECK_FALSE(terms.superseded_by(6));
  CHECK(terms.superseded_by(5));
  CHECK(terms.superseded_by(7));
  terms.in_force(4);  // the other one was not there
  CHECK_FALSE(terms.superseded_by(6));
  CHECK(terms.superseded_by(5));
}

namespace {

rnbd::ClientConfig mirror_config(const std::string& uri) {
  rnbd::ConfigReader reader;
  REQUIRE_MESSAGE(reader.set("uri", uri), uri);
  const auto config = reader.complete();
  REQUIRE_MESSAGE(config, uri);
  return *config;
}

std::string printed(const rnbd::ClientConfig& config) { return MemberLinks{config, {}, {}}.uri(); }

}  // namespace

TEST_CASE("member links: the URI that is shown names the same mirror, used in the same way") {
  for (const char* uri :
       {"rnbd-mirror+tcp://a,b/disk0",
        "rnbd-mirror+tcp://a:99+10.0.0.2+rdma:[fe80::1%25eb0]:5,10.0.0.3@[::1],c/a%3Fb%25&c//d",
        "rnbd-mirror://a+tcp:a2,tcp:b/disk0?degraded=quorum&read=near&resync-rate=50",
        "rnbd-mirror+tcp://a,b/disk0?degraded=allow&read=round-robin",
        "rnbd-mirror+tcp://a,b/disk0?vote=w:99",
        "rnbd-mirror://a,b/disk0?vote=tcp:[::1]:5&read=near",
        "rnbd-mirror://me%40here@a,b/disk0?auth-psk-file=/etc/a%26b%25.psk&read=near",
        "rnbds-mirror+tcp://a%2Fb@a,b/disk0?tls-psk-file=/k.psk&resync-rate=1048576",
        "rnbds-mirror+tcp://a,b/disk0?tls-certificates=/etc/keys&tls-verify=false",
        "rnbd-mirror+tcp://a,b/d?group=00112233-4455-6677-8899-aabbccddeeff"}) {
    CAPTURE(uri);
    const rnbd::ClientConfig config = mirror_config(uri);
    const rnbd::ClientConfig again = mirror_config(printed(config));
    CHECK(again.servers == config.servers);
    CHECK(settings_of(again).group == settings_of(config).group);
    CHECK(settings_of(again).near == settings_of(config).near);
    CHECK(settings_of(again).vote == settings_of(config).vote);
    CHECK(settings_of(again).degraded == settings_of(config).degraded);
    CHECK(settings_of(again).resync_rate == settings_of(config).resync_rate);
    CHECK(again.device == config.device);
    CHECK(again.tls == config.tls);
    CHECK(again.tls_keys.psk == config.tls_keys.psk);
    CHECK(again.tls_keys.certificates == config.tls_keys.certificates);
    CHECK(again.tls_keys.username == config.tls_keys.username);
    CHECK(again.tls_keys.verify_peer == config.tls_keys.verify_peer);
    REQUIRE(again.auth_keys.has_value() == config.auth_keys.has_value());
    if (!config.auth_keys) continue;
    CHECK(again.auth_keys->psk == config.auth_keys->psk);
    CHECK(again.auth_keys->username == config.auth_keys->username);
  }
}

TEST_CASE("member links: the steward shares a session with event loops only") {
  rnbd::ClientConfig config = mirror_config("rnbd-mirror+tcp://a,b/disk0");
  config.lanes = 3;
  CHECK(MemberLinks{config, {}, {}}[0].config()->lanes == 1);
  config.event_loops = true;
  CHECK(MemberLinks{config, {}, {}}[0].config()->lanes == 4);
}

TEST_CASE("member links: the vote is behind the disks, and is opened for reading only") {
  const rnbd::ClientConfig config = mirror_config("rnbd-mirror+tcp://a,b/disk0?vote=w");
  const MemberLinks links{config, {}, {}};
  REQUIRE(links.size() == 3);
  CHECK(links.server(2) == "w:1234");
  CHECK(links[2].config()->device == ".vote");
  CHECK(links[2].config()->access == rnbd::wire::AccessMode::read_only);
  CHECK(links[1].config()->access == rnbd::wire::AccessMode::read_write);
}

TEST_CASE("member links: a server that took the place of another one is in the URI") {
  const rnbd::ClientConfig config = mirror_config("rnbd-mirror+tcp://a+a2,b/disk0?read=near");
  MemberLinks links{config, {}, {}};
  links[0].go_to({rtrs::TransportKind::rdma, "", "d", 5});
  const rnbd::ClientConfig again = mirror_config(links.uri());
  CHECK(again.servers[0] == links[0].config()->paths);
  CHECK(again.servers[1] == config.servers[1]);
  CHECK(settings_of(again).group == settings_of(config).group);
}

TEST_CASE("mirror status: it says who is there, and which record stands against which") {
  using Standing = Membership::Standing;
  MirrorStatus status;
  for (const char* server : {"a:1", "b:1"})
    status.members.push_back({.server = server, .progress = {Standing::waiting, 0}});
  MemberStatus &a = status.members[0], &b = status.members[1];
  b.progress = {};
  CHECK(why_not_attached(status) ==
        "a:1 (is there, and waits for b:1), b:1 (has not answered yet)");
  b.trouble = "Connection refused";
  CHECK(why_not_attached(status) == "a:1 (is there, and waits for b:1), b:1 (Connection refused)");
  a.record = {.told = true, .set = 3};
  CHECK(why_not_used(a, status) ==
        "is there, and waits for b:1: its record has in step a:1 and b:1");
  CHECK(why_not_used(b, status) == "Connection refused");
  b = {
      .server = "b:1", .progress = {Standing::waiting, 0}, .record = {.told = true, .blank = true}};
  const std::string text = why_not_attached(status);
  CHECK(text.find("b:1 (is there, and its disk is new in this mirror); the former disk of b:1") !=
        std::string::npos);
  CHECK(why_not_used(a, status) == "is there, and its record has in step a:1 and b:1");
  CHECK(text.find("go on with a:1 by `rnbd-ctl SOCKET mirror force a:1`") != std::string::npos);
  b.record = {.told = true, .displaced = true, .older = true, .set = 3};
  CHECK(why_not_attached(status).find("; name the servers as `mirror add` has printed them") !=
        std::string::npos);
  CHECK(why_not_attached(status).find("mirror force") == std::string::npos);
  b.record = {.told = true, .set_back = true, .older = true, .set = 3};
  CHECK(why_not_attached(status).find("b:1 (is there, and was set back") != std::string::npos);
  CHECK(why_not_attached(status).find("the later state of b:1 may have newer data than a:1") !=
        std::string::npos);
  status.lacks_history = true;
  CHECK(why_not_attached(status).find("none of those that are there has recorded that") !=
        std::string::npos);
  status.lacks_history = false;
  b.record = {.told = true, .older = true, .set = 3};
  CHECK(why_not_attached(status).find("mirror force") == std::string::npos);
  CHECK(why_not_attached(status).find("its record is an older one: it has in step a:1 and b:1") !=
        std::string::npos);
}

TEST_CASE("mirror status: who forces a member is told what its record says, and what is lost") {
  using Standing = Membership::Standing;
  MirrorStatus status;
  for (const char* server : {"a:1", "b:1", "c:1"})
    status.members.push_back({.server = server, .progress = {Standing::waiting, 0}});
  Membership::Record &a = status.members[0].record, &b = status.members[1].record;
  const auto says = [&](unsigned member, const std::string& text) {
    return dangers_of_forcing(member, status).find(text) != std::string::npos;
  };
  CHECK(says(0, "WARNING: a:1 may lack writes"));
  CHECK(says(0, "nothing is known of its record yet"));
  CHECK(says(0, "b:1 and c:1 get a full copy"));
  a = {.told = true, .set = 3};
  CHECK(says(0, "its record has in step a:1 and b:1"));
  b = {.told = true, .older = true, .set = 3};
  CHECK(says(1, "its record is an older one than that of a:1"));
  CHECK(says(1, "a:1 and c:1 get a full copy"));
  b = {.told = true, .set_back = true, .older = true, .set = 3};
  CHECK(says(1, "it was set back to an earlier state"));
  b = {.told = true, .displaced = true, .older = true, .set = 3};
  CHECK(says(1, "another disk has had its place in this mirror since"));
  CHECK(says(1, "name the servers as `mirror add` has printed them"));
  CHECK(says(0, "c:1 gets a full copy"));
  CHECK(says(0, "nothing is copied to b:1"));
  status.members[2].votes = true;
  CHECK_FALSE(says(0, "The vote of"));
  status.members[2].progress = {};
  CHECK(says(0, "The vote of c:1 is away"));
}

TEST_CASE("mirror status: a disk waits for a vote that the URI leaves out") {
  using Standing = Membership::Standing;
  MirrorStatus status;
  for (const char* server : {"a:1", "b:1"})
    status.members.push_back({.server = server, .progress = {Standing::away, 0}});
  MemberStatus& a = status.members[0];
  a.progress = {Standing::waiting, 0};
  a.record = {.told = true, .set = 0b101};
  CHECK(why_not_used(a, status) ==
        "is there, and waits for the vote that its record has in step; name its server as vote= "
        "again: its record has in step a:1");
  a.record.set = 0b111;
  CHECK(why_not_used(a, status).find("waits for b:1 and the vote") != std::string::npos);
  status.members.push_back({.server = "w:1", .votes = true});
  CHECK(why_not_used(status.members[0], status) ==
        "is there, and waits for b:1 and w:1: its record has in step a:1 and b:1 and w:1");
}

TEST_CASE("mirror status: each member that is not used has a reason") {
  using Standing = Membership::Standing;
  MirrorStatus status;
  status.live = true;
  for (const char* server : {"a:1", "b:1"})
    status.members.push_back({.server = server, .progress = {Standing::in_step, 0}});
  MemberStatus &a = status.members[0], &b = status.members[1];
  CHECK(why_not_used(a, status).empty());
  b.hangs = true;
  CHECK(why_not_used(b, status).find("mirror discard b:1") != std::string::npos);
  b = {.server = "b:1", .progress = {Standing::resync, 3}};
  CHECK(why_not_used(b, status).empty());
  b.progress = {Standing::waiting, 0};
  CHECK(why_not_used(b, status) == "is there, and is about to be taken in");
  b.record.promised = status.term + 2;
  CHECK(why_not_used(b, status).find("has promised term 2 to another client") != std::string::npos);
  b.record = {};
  b.progress = {};
  CHECK(why_not_used(b, status) == "has not answered yet");
  CHECK(asked_beside(0, status) == "b:1");
  CHECK(asked_beside(1, status) == "a:1");
  b.session.paths.emplace_back().trouble = "Connection refused";
  CHECK(why_not_used(b, status) == "has not answered yet: Connection refused");
  CHECK(asked_beside(0, status).empty());
  b.session.paths.emplace_back();
  CHECK(asked_beside(0, status) == "b:1");
  b.session = {};
  a.record.told = true;
  CHECK(asked_beside(1, status).empty());
  a.record = {};
  b.trouble = "another client writes to it";
  CHECK(asked_beside(0, status).empty());
  CHECK(why_not_used(b, status) == "another client writes to it");
  status.live = false;
  a.progress = b.progress = {Standing::waiting, 0};
  b.trouble = "";
  CHECK(why_not_used(a, status) == "is there, and its record is being read");
}

TEST_CASE("mirror status: it says why a mirror does not grow, although disks have") {
  using Standing = Membership::Standing;
  constexpr std::uint64_t kMiB = 1 << 20;
  MirrorStatus status;
  status.live = true;
  status.size = 16 * kMiB;
  status.block = 512;
  status.region_bytes = kMiB;
  for (const char* server : {"a:1", "b:1"})
    status.members.push_back(
        {.server = server, .progress = {Standing::in_step, 0}, .room = status.size});
  MemberStatus &a = status.members[0], &b = status.members[1];
  status.growth = "b:1 cannot record a larger one";
  CHECK(why_not_grown(status).empty());
  a.room = 20 * kMiB;
  CHECK(why_not_grown(status).find("the disk of b:1 is enlarged") != std::string::npos);
  b.room = 20 * kMiB;
  CHECK(why_not_grown(status) == status.growth);
  status.size = (std::uint64_t{rnbd::wire::kMaxGrownRegions} - 1) * kMiB;
  a.room = b.room = 2 * status.size;
  CHECK(why_not_grown(status).find("as many regions as it can have") != std::string::npos);
  status.size -= 512;  // the last region is a part of one
  CHECK(why_not_grown(status) == status.growth);
}

TEST_CASE("server table: of two members at one server, the one that is open there stays") {
  using Stage = ServerTable::Stage;
  ServerTable table{3, 3};
  CHECK_FALSE(table.enter(1, 77, Stage::opening));
  CHECK_FALSE(table.enter(0, 77, Stage::opening));  // neither is open: the lower number goes on
  CHECK(table.enter(1, 77, Stage::open) == 0U);
  table.leave(1);
  table.leave(0);  // it could not open its disk there, and keeps nobody out
  CHECK_FALSE(table.enter(1, 77, Stage::opening));
  CHECK_FALSE(table.enter(1, 77, Stage::open));
  CHECK(table.enter(0, 77, Stage::opening) == 1U);
  CHECK(table.enter(2, 77, Stage::opening) == 1U);
  CHECK_FALSE(table.enter(2, 78, Stage::open));
  CHECK_FALSE(table.enter(1, 77, Stage::open));  // again, after its session has ended
  table.leave(1);
  CHECK_FALSE(table.enter(0, 77, Stage::open));
}

TEST_CASE("server table: a vote gives way to a disk, whichever is there first") {
  using Stage = ServerTable::Stage;
  ServerTable table{2, 3};
  CHECK_FALSE(table.enter(2, 77, Stage::opening));
  CHECK_FALSE(table.enter(2, 77, Stage::open));
  CHECK_FALSE(table.enter(1, 77, Stage::opening));
  CHECK(table.enter(2, 77, Stage::open) == 1U);
  CHECK_FALSE(table.enter(1, 77, Stage::open));
  CHECK(table.enter(2, 77, Stage::opening) == 1U);
}

TEST_CASE("server table: servers without an identity are not taken for one") {
  ServerTable table{2, 2};
  CHECK_FALSE(table.enter(0, 0, ServerTable::Stage::open));
  CHECK_FALSE(table.enter(1, 0, ServerTable::Stage::open));
}

TEST_CASE("told terms: a record that is far ahead of another one needs a second one beside it") {
  constexpr std::uint64_t kFar = std::uint64_t{600} << 32;
  RecordTerms told{3};
  CHECK(told.against(0, kFar) == kMaxMembers);  // nobody has said anything else
  told.note(0, kFar);
  told.note(1, 0);  // a new disk knows nothing
  CHECK(told.against(0, kFar) == kMaxMembers);
  told.note(1, 5);
  CHECK(told.against(0, kFar) == 1);
  CHECK(told.against(1, 5) == kMaxMembers);
  CHECK(told.near(kFar) == bit(0));
  told.note(2, kFar + 3);
  CHECK(told.against(0, kFar) == kMaxMembers);
  CHECK(told.against(2, kFar + 3) == kMaxMembers);
  CHECK(told.near(kFar) == (bit(0) | bit(2)));
}

TEST_CASE("told terms: a member that refuses a term as too far ahead speaks against it") {
  constexpr std::uint64_t kFar = std::uint64_t{600} << 32;
  RecordTerms told{2};
  told.note(0, kFar);
  CHECK(told.fell_behind(1, kFar + 1));
  CHECK(told.against(0, kFar) == 1);
  told.note(1, 0);  // its record was taken away
  CHECK(told.against(0, kFar) == kMaxMembers);
  CHECK_FALSE(told.fell_behind(1, kFar + 1));
  CHECK(told.against(0, kFar) == kMaxMembers);
}

TEST_CASE("mirror status: a record is given up on the word of two servers only") {
  const std::string one = words_of_shut_out(5, 7000, "a:1", false);
  CHECK(one.find("has term 5") != std::string::npos);
  CHECK(one.find("term 7000, by the record of a:1") != std::string::npos);
  CHECK(one.find("member free") == std::string::npos);
  CHECK(words_of_shut_out(5, 7000, "a:1 and b:1", true).find("member free") != std::string::npos);
  const std::string doubt = words_of_doubt(7000, "b:1", 5);
  CHECK(doubt.find("7000") != std::string::npos);
  CHECK(doubt.find("b:1 has term 5") != std::string::npos);
}
