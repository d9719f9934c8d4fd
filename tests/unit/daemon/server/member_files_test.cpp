// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/daemon/server/mirror/member_files.hpp"

#include <doctest/doctest.h>
#include <stdlib.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "bridge/protocol/uuid.hpp"

namespace rnbd::member_files_test {
namespace {

constexpr wire::Uuid kStorage{1};

struct State {
  State() {
    std::string name = (std::filesystem::temp_directory_path() / "rnbd-members-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    root = name;
    record = root / uuid_text(kStorage);
    files = *MemberFiles::open(root);
  }
  ~State() { std::filesystem::remove_all(root); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  std::filesystem::path root;
  std::filesystem::path record;
  std::shared_ptr<MemberFiles> files;
};

std::string text_of(const std::filesystem::path& path) {
  std::ifstream file{path};
  return {std::istreambuf_iterator<char>{file}, {}};
}

TEST_CASE("member files: a record that is taken away replaces no older one") {
  const State state;
  for (const char* text : {"one", "two", "three"}) {
    std::ofstream{state.record} << text;
    const auto removed = state.files->remove(kStorage);
    CHECK(removed.gone);
    CHECK(removed.trouble.empty());
  }
  const std::string freed = state.record.string() + ".freed";
  CHECK(text_of(freed) == "one");
  CHECK(text_of(freed + "1") == "two");
  CHECK(text_of(freed + "2") == "three");
  CHECK_FALSE(state.files->remove(kStorage).gone);
}

TEST_CASE("member files: records that cannot be listed are an error, and not none") {
  const State state;
  std::ofstream{state.record} << "one";
  std::ofstream{state.record.string() + ".freed"} << "two";
  REQUIRE(state.files->all());
  CHECK(*state.files->all() == std::vector<wire::Uuid>{kStorage});
  std::filesystem::remove_all(state.root);
  CHECK_FALSE(state.files->all());
}

TEST_CASE("member files: a record that is kept closed holds no descriptor, and misses its file") {
  const State state;
  const auto files = *MemberFiles::open(state.root, MemberFiles::Keep::closed);
  const auto held = [] {
    using Entries = std::filesystem::directory_iterator;
    return std::distance(Entries{"/proc/self/fd"}, Entries{});
  };
  const auto before = held();
  const auto file = files->create(kStorage, {std::byte{'a'}, std::byte{'b'}}).file;
  CHECK(held() == before);
  mirror::Save save;
  save.head = mirror::Patch{1, {std::byte{'c'}}};
  CHECK(file->write(save));
  CHECK(text_of(state.record) == "ac");
  CHECK(held() == before);
  std::filesystem::remove(state.record);
  CHECK_FALSE(file->write(save));
}

TEST_CASE("member files: the group of a record outlives it where its mirror was dissolved") {
  constexpr wire::Uuid kGroup{7};
  const State state;
  mirror::MemberState member;
  member.group = kGroup;
  member.shape = {0, 2, 20, 8 << 20};
  member.record = mirror::MemberRecord::first(0, 2, 8 << 20, 1 << 20);
  const auto image = mirror::whole_image(member, 1);
  REQUIRE(state.files->create(kStorage, image).trouble.empty());
  CHECK(state.files->former_group(kStorage) == wire::Uuid{});
  REQUIRE(state.files->dissolve(kStorage).gone);
  CHECK_FALSE(state.files->load(kStorage)->has_value());
  CHECK(state.files->former_group(kStorage) == kGroup);
  SUBCASE("until it is taken away") { CHECK(state.files->remove(kStorage).gone); }
  SUBCASE("until there is another record") {
    REQUIRE(state.files->create(kStorage, image).trouble.empty());
  }
  CHECK(state.files->former_group(kStorage) == wire::Uuid{});
}

TEST_CASE("member files: a record that cannot be written leaves no draft, which would take room") {
  const State state;
  std::filesystem::create_directory(state.record);  // nothing is renamed to that
  const mirror::Creation created = state.files->create(kStorage, std::vector<std::byte>(8192));
  CHECK(created.file == nullptr);
  CHECK_FALSE(created.trouble.empty());
  CHECK_FALSE(std::filesystem::exists(state.record.string() + ".new"));
}

TEST_CASE("member files: a record that is damaged is told from one that cannot be read") {
  const State state;
  CHECK_FALSE(state.files->load(kStorage)->has_value());
  std::ofstream{state.record} << "no record";
  CHECK(state.files->load(kStorage).error().error == EBADMSG);
  std::filesystem::remove(state.record);
  std::filesystem::create_directory(state.record);
  CHECK(state.files->load(kStorage).error().error != EBADMSG);
}

}  // namespace
}  // namespace rnbd::member_files_test
