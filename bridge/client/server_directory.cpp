// SPDX-License-Identifier: BSD-3-Clause
// Lists of exports, which come page by page.
#include "bridge/client/server_directory.hpp"

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <string>
#include <utility>

#include "bridge/client/control.hpp"
#include "bridge/client/directions.hpp"
#include "bridge/client/session.hpp"

namespace rnbd {
namespace {

/// Names that a list of exports may have. A server could go on for ever, and with it the memory.
constexpr std::uint32_t kMaxExports = 100'000;
constexpr std::size_t kMaxExportText = 16 << 20;  ///< bytes of names and descriptions

Failure too_many_exports(const std::string& how_many) {
  return {EOVERFLOW, "the server has " + how_many + ", too many to list; name a device"};
}

std::vector<wire::ExportName>& entries_of(wire::ExportPage& page) { return page.exports; }
std::vector<wire::DirectoryEntry>& entries_of(wire::DirectoryPage& page) { return page.entries; }

/// Asks for page after page. `answer`: room for one of them.
template <class Entry, class Question, class Page>
tl::expected<std::vector<Entry>, Failure> all_pages(rtrs::Client& client, Question question,
                                                    wire::Result<Page> (*decode)(rtrs::ConstBytes),
                                                    std::vector<std::byte> answer,
                                                    const Interrupt& interrupt) {
  std::vector<Entry> all;
  std::size_t text = 0;
  for (;;) {
    question.first = static_cast<std::uint32_t>(all.size());
    ControlOperation operation{question, answer};
    if (int error = client.run_control(operation, interrupt); error != 0) {
      return tl::unexpected(Failure{
          error, std::string{"the server does not list its exports: "} + describe_error(error)});
    }
    auto page = decode(answer);
    if (page && page->total > kMaxExports) {
      return tl::unexpected(too_many_exports(std::to_string(page->total) + " exports"));
    }
    if (!page) return tl::unexpected(nonsense_from_server("a malformed list of exports"));
    std::vector<Entry>& entries = entries_of(*page);
    for (const Entry& entry : entries) text += entry.name.size() + entry.description.size();
    if (text > kMaxExportText) return tl::unexpected(too_many_exports("long descriptions"));
    std::move(entries.begin(), entries.end(), std::back_inserter(all));
    if (entries.empty() || all.size() >= page->total) return all;
  }
}

bool is_understood(const wire::DirectoryEntry& entry) {
  switch (entry.kind) {
    case wire::DirectoryKind::exported:
      return true;
    case wire::DirectoryKind::referral:
      return parse_referral(entry.description).has_value();
    case wire::DirectoryKind::path:
      return parse_advertised(entry.name).has_value();
  }
  return false;
}

Failure cannot_list() {
  return {EOPNOTSUPP,
          "this server cannot list its exports (only rnbdkit servers can); name a device"};
}

}  // namespace

bool ServerDirectory::is_there() const {
  return (limits_.features & rtrs::wire::kFeatureUserMessages) != 0;
}

std::vector<std::byte> ServerDirectory::room_for_page() const {
  return std::vector<std::byte>(std::min<std::size_t>(limits_.max_io_size, 64 * 1024));
}

tl::expected<std::vector<wire::ExportName>, Failure> ServerDirectory::exports(
    const Interrupt& interrupt) const {
  if (!is_there()) return tl::unexpected(cannot_list());
  const wire::ListExports question{wire::header_of(wire::MessageType::list_exports)};
  return all_pages<wire::ExportName>(client_, question, &wire::decode_export_page, room_for_page(),
                                     interrupt);
}

wire::WhoAnswer ServerDirectory::who(const std::string& device, const Interrupt& interrupt) const {
  if (!is_there() || !wire::is_valid_device_name(device)) return {};
  std::vector<std::byte> answer(sizeof(wire::WhoResponse) + wire::kMaxWho);
  ControlOperation operation{wire::encode_who(device), answer};
  if (client_.run_control(operation, interrupt) != 0) return {};
  return wire::decode_who_response(answer).value_or(wire::WhoAnswer{});
}

tl::expected<std::vector<wire::DirectoryEntry>, Failure> ServerDirectory::entries(
    const Interrupt& interrupt, std::uint32_t kinds) const {
  if (!is_there()) return tl::unexpected(cannot_list());
  wire::Directory question{wire::header_of(wire::MessageType::directory)};
  question.kinds = kinds;
  auto all = all_pages<wire::DirectoryEntry>(client_, question, &wire::decode_directory_page,
                                             room_for_page(), interrupt);
  if (!all && all.error().error == EINVAL) {
    all.error().text = "this server is of a version that has no directory of its exports";
  }
  if (all) std::erase_if(*all, [](const auto& entry) { return !is_understood(entry); });
  return all;
}

tl::expected<std::vector<rtrs::PathAddress>, Failure> ServerDirectory::advertised(
    const Interrupt& interrupt) const {
  std::vector<rtrs::PathAddress> paths;
  if (!is_there()) return paths;
  wire::Directory question{wire::header_of(wire::MessageType::directory)};
  question.kinds = wire::kDirectoryPaths;
  std::vector<std::byte> answer = room_for_page();
  ControlOperation operation{question, answer};
  const int error = client_.run_control(operation, interrupt);
  if (error == EINVAL) return paths;
  if (error != 0) return tl::unexpected(Failure{error, describe_error(error)});
  const auto page = wire::decode_directory_page(answer);
  if (!page) return tl::unexpected(nonsense_from_server("malformed addresses of its own"));
  for (const wire::DirectoryEntry& entry : page->entries) {
    if (entry.kind != wire::DirectoryKind::path || paths.size() == kMaxAdvertised) continue;
    auto path = parse_advertised(entry.name);
    if (path && std::ranges::find(paths, *path) == paths.end()) paths.push_back(*std::move(path));
  }
  return paths;
}

std::string ServerDirectory::referral(const std::string& device, const Interrupt& interrupt) const {
  if (!is_there()) return "";
  const auto all = entries(interrupt, wire::kDirectoryReferrals);
  if (!all) return "";
  const auto found = std::ranges::find_if(*all, [&](const wire::DirectoryEntry& entry) {
    return entry.kind == wire::DirectoryKind::referral && entry.name == device;
  });
  return found != all->end() ? found->description : "";
}

}  // namespace rnbd
