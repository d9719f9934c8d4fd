// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/client/mirror/member_links.hpp"

#include <cerrno>
#include <utility>

#include "bridge/protocol/uuid.hpp"

namespace rnbd::mirror {
namespace {

ClientConfig config_of_member(const ClientConfig& whole, std::size_t member) {
  ClientConfig config = whole;
  config.paths = whole.mirror->members[member];
  config.mirror.reset();
  config.lanes = 1;
  config.access = wire::AccessMode::read_write;
  config.is_member = true;
  config.control.clear();
  return config;
}

/// The characters that a URI has for itself.
std::string percent_encoded(const std::string& text) {
  constexpr char kDigits[] = "0123456789ABCDEF";
  std::string encoded;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte > ' ' && byte < 0x7F && c != '%' && c != '?' && c != '#') {
      encoded += c;
    } else {
      encoded += '%';
      encoded += kDigits[byte >> 4];
      encoded += kDigits[byte & 15];
    }
  }
  return encoded;
}

}  // namespace

MemberLinks::MemberLinks(const ClientConfig& config, const rtrs::Log& log, const OnOpen& on_open)
    : scheme_{config.server().substr(0, config.server().find("://"))},
      device_{config.device},
      group_{config.mirror->group} {
  for (unsigned i = 0; i < config.mirror->members.size(); ++i) {
    links_.push_back(std::make_unique<MemberLink>(
        config_of_member(config, i), log,
        [on_open, i](std::unique_ptr<OpenMember> open) { on_open(i, std::move(open)); }));
  }
}

tl::expected<unsigned, rtrs::Failure> MemberLinks::named(const std::string& wanted) const {
  std::string all;
  for (unsigned i = 0; i < links_.size(); ++i) {
    const std::string name = server(i);
    if (name == wanted) return i;
    all += (all.empty() ? "" : ", ") + name;
  }
  return tl::unexpected(rtrs::Failure{ENOENT, "no member is called that; write one of: " + all});
}

std::string MemberLinks::troubles() const {
  std::string text;
  for (unsigned i = 0; i < links_.size(); ++i) {
    const std::string why = links_[i]->trouble();
    if (i != 0) text += ", ";
    text += server(i) + " (" + (why.empty() ? "is there" : why) + ")";
  }
  return text;
}

std::string MemberLinks::dangers_of_forcing(unsigned member) const {
  std::string others;
  for (unsigned i = 0; i < links_.size(); ++i)
    if (i != member) others += (others.empty() ? "" : ", ") + server(i);
  return "WARNING: " + server(member) +
         " may lack writes that were answered, or have some that were not. With --force its disk "
         "becomes the only good one. All that only the others have is lost: " +
         others +
         " get a full copy of it when they are back. Start them instead if that is possible. "
         "File systems on the disk should be checked afterwards";
}

std::string MemberLinks::uri_of(unsigned member) const {
  const auto config = links_[member]->config();
  return config->server() + "/" + percent_encoded(config->device);
}

std::string MemberLinks::uri() const {
  std::string servers;
  for (unsigned i = 0; i < links_.size(); ++i) servers += (i == 0 ? "" : ",") + server(i);
  return scheme_ + "://" + servers + "/" + percent_encoded(device_) + "?group=" + uuid_text(group_);
}

}  // namespace rnbd::mirror
