// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/ctl/keys.hpp"

#include <unistd.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <array>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

#include "bridge/ctl/output.hpp"
#include "bridge/ctl/whole_file.hpp"
#include "bridge/daemon/cli.hpp"
#include "rdma/transport/tls/generate.hpp"
#include "rdma/transport/tls/inspect.hpp"
#include "rdma/transport/tls/key_files.hpp"
#include "rdma/transport/tls/psk_file.hpp"

namespace rnbd {
namespace {

namespace tls = rtrs::tls;
using Done = tl::expected<void, std::string>;
using For = tls::CertificateRequest::For;

constexpr const char* kKeygenDescription =
    "rnbd-ctl keygen - make a shared key for TLS\n"
    "\n"
    "Appends a line NAME:HEX with 32 random bytes to FILE, the server's, and writes a copy with\n"
    "that line alone to the file behind --out, the client's. The key itself is never shown.\n"
    "A NAME that is there already gets a second key, NAME/2, so that both work until you remove\n"
    "the older line. NAME is who the client is: 1 to 63 printable characters without * / @ :\n";
constexpr const char* kKeygenExamples = R"(Examples:
  A key for host1, and its copy to hand out:
    rnbd-ctl keygen host1 /etc/rnbd/keys.psk --out host1.psk
    rnbd-server --listen tcp:192.0.2.1:1234 --tls=require --tls-psk=/etc/rnbd/keys.psk ...
    nbdkit rnbd 'rnbds+tcp://host1@192.0.2.1/disk0?tls-psk-file=/etc/rnbd/host1.psk'

  A new key for host1, beside the old one:
    rnbd-ctl keygen host1 /etc/rnbd/keys.psk --out host1-new.psk)";

constexpr const char* kCertgenDescription =
    "rnbd-ctl certgen - make certificates for TLS\n"
    "\n"
    "Keeps an authority (CA) in DIRECTORY: ca-cert.pem, and ca-key.pem, which nobody else needs.\n"
    "It is made when there is none. --server makes server-cert.pem and server-key.pem, --client\n"
    "makes client-cert.pem and client-key.pem; --out puts them, with a copy of ca-cert.pem, into\n"
    "another directory, ready to hand out. Keys are ECDSA on P-256.\n"
    "--withdraw writes ca-crl.pem, the list of certificates that do not count any more. WHO is a\n"
    "client or server that it has made certificates for, which issued.txt tells, or a file or\n"
    "directory with the certificate.\n";
constexpr const char* kCertgenExamples = R"(Examples:
  An authority and the server's certificate, for all names that clients use for it:
    rnbd-ctl certgen /root/rnbd-ca --server storage.example,192.0.2.1 --out /etc/rnbd/tls

  A directory for the client host1:
    rnbd-ctl certgen /root/rnbd-ca --client host1 --out host1-tls
    nbdkit rnbd 'rnbds+tcp://storage.example/disk0?tls-certificates=/etc/rnbd/host1-tls'

  host1 was stolen: all certificates that it has so far are withdrawn, and its sessions end:
    rnbd-ctl certgen /root/rnbd-ca --withdraw host1
    cp /root/rnbd-ca/ca-crl.pem /etc/rnbd/tls
    rnbd-ctl /run/rnbd-server/control reload)";

Done make_directory(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (!error) return {};
  return tl::unexpected(path + ": " + error.message());
}

tl::expected<tls::CertificateFacts, std::string> facts_in(const std::string& path) {
  const auto content = tls::read_key_file(path, tls::Kind::open);
  if (!content) return tl::unexpected(content.error());
  return tls::certificate_facts(content->text()).map_error([&](const std::string& wrong) {
    return path + ": " + wrong;
  });
}

// ---- Shared keys -------------------------------------------------------------------------------

/// NAME, or NAME/2 and so on if there is one.
std::string next_name(const std::vector<tls::PskKey>& keys, const std::string& name) {
  const auto taken = [&](const std::string& candidate) {
    for (const auto& key : keys) {
      if (key.name == candidate) return true;
    }
    return false;
  };
  if (!taken(name)) return name;
  unsigned id = 2;
  while (taken(name + '/' + std::to_string(id))) ++id;
  return name + '/' + std::to_string(id);
}

Done make_key(const std::string& name, const std::string& file, const std::string& out) {
  if (const std::string fault = tls::fault_of_identity(name); !fault.empty()) {
    return tl::unexpected("the name '" + name + "' " + fault);
  }
  if (name.front() == '#') {
    return tl::unexpected("the name '" + name +
                          "' begins with #, which makes its line a comment; use another one");
  }
  if (const auto directory = std::filesystem::path{file}.parent_path(); !directory.empty()) {
    if (auto done = make_directory(directory); !done) return done;
  }
  const auto lock = lock_files_beside(file);
  if (!lock) return tl::unexpected(lock.error());
  std::vector<char> all;
  std::string key_name = name;
  if (tls::is_there(file)) {
    const auto content = tls::read_key_file(file, tls::Kind::secret);
    if (!content) return tl::unexpected(content.error());
    const auto text = content->text();
    if (!text.empty()) {
      const auto keys = tls::parse_psk(text);
      if (!keys) return tl::unexpected(file + ": " + keys.error());
      key_name = next_name(*keys, name);
      all.reserve(text.size() + 512);
      all.assign(text.begin(), text.end());
      if (all.back() != '\n') all.push_back('\n');
    }
  }
  const auto line = tls::make_psk_line(key_name);
  if (!line) return tl::unexpected(line.error());
  all.reserve(all.size() + line->text().size());
  all.insert(all.end(), line->text().begin(), line->text().end());
  const tls::Content whole{std::move(all)};
  if (!out.empty()) {
    if (tls::is_there(out)) {
      return tl::unexpected(out + " is there already; name a new file behind --out");
    }
    if (auto done = write_file(out, line->text(), 0600); !done) return done;
  }
  if (auto done = write_file(file, whole.text(), 0600); !done) {
    if (!out.empty()) ::unlink(out.c_str());
    return done;
  }
  say("the key '" + key_name + "' is in " + file + (out.empty() ? "" : " and, alone, in ") + out +
      "\n");
  return {};
}

std::optional<EarlyExit> parse_keygen(int argc, const char* const* argv, Done& done) {
  CLI::App app{kKeygenDescription, "rnbd-ctl keygen"};
  std::string name, file, out;
  app.add_option("NAME", name, "Who the client is.");
  app.add_option("FILE", file, "The server's file of keys.");
  app.add_option("--out", out, "A new file for the client.")->type_name("FILE");
  if (auto early = parse_arguments(app, kKeygenExamples, "name a client and a file", argc, argv)) {
    return early;
  }
  if (file.empty()) return usage_error(app, "write rnbd-ctl keygen NAME FILE");
  done = make_key(name, file, out);
  return std::nullopt;
}

// ---- Certificates ------------------------------------------------------------------------------

struct CertificateWish {
  std::string directory, out, client, withdraw;
  std::vector<std::string> server;
  unsigned days = 398;
};

constexpr std::time_t kDay = 86400;
constexpr std::time_t kClockSkew = 3600;  ///< seconds; other clocks may be behind
constexpr unsigned kAuthorityDays = 3650;

constexpr const char* kIssued = "/issued.txt";  ///< lines SERIAL NAME, beside the authority's key

/// Several authorities may be trusted at a time, and issuers are looked for by their names.
std::string name_of_authority() {
  std::array<char, 32> name{};
  std::random_device random;
  std::snprintf(name.data(), name.size(), "rnbdkit CA %08x", static_cast<unsigned>(random()));
  return name.data();
}

tl::expected<tls::Issued, std::string> make_authority(const std::string& directory) {
  const std::time_t now = std::time(nullptr);
  auto made = tls::issue({.use = For::authority,
                          .common_name = name_of_authority(),
                          .hosts = {},
                          .begin = now - kClockSkew,
                          .end = now + kAuthorityDays * kDay},
                         nullptr);
  if (!made) return made;
  auto done = write_file(directory + "/ca-key.pem", made->key.text(), 0600);
  if (done) done = write_file(directory + '/' + tls::kCaCertificate, made->certificate, 0644);
  if (!done) return tl::unexpected(done.error());
  say("made an authority in " + directory + "; keep ca-key.pem there, and to yourself\n");
  return made;
}

tl::expected<tls::Issued, std::string> find_authority(const std::string& directory) {
  const std::string certificate = directory + '/' + tls::kCaCertificate;
  const std::string key = directory + "/ca-key.pem";
  if (!tls::is_there(certificate) && !tls::is_there(key)) return make_authority(directory);
  const auto certificate_text = tls::read_key_file(certificate, tls::Kind::open);
  if (!certificate_text) return tl::unexpected(certificate_text.error());
  auto key_text = tls::read_key_file(key, tls::Kind::secret);
  if (!key_text) return tl::unexpected(key_text.error());
  return tls::Issued{std::string{certificate_text->text()}, *std::move(key_text)};
}

/// "": there is no such file.
tl::expected<std::string, std::string> text_of(const std::string& path) {
  if (!tls::is_there(path)) return "";
  const auto content = tls::read_key_file(path, tls::Kind::open);
  if (!content) return tl::unexpected(content.error());
  return std::string{content->text()};
}

Done record(const std::string& directory, const std::string& certificate, const std::string& name) {
  const std::string path = directory + kIssued;
  const auto facts = tls::certificate_facts(certificate);
  if (!facts) return tl::unexpected(facts.error());
  const auto before = text_of(path);
  if (!before) return tl::unexpected(before.error());
  return write_file(path, *before + facts->serial + ' ' + name + '\n', 0644);
}

/// `directory`: where the authority is.
Done issue_into(const std::string& out, const std::string& directory, const tls::Issued& authority,
                const tls::CertificateRequest& request) {
  const bool server = request.use == For::server;
  const std::string certificate =
      out + '/' + (server ? tls::kServerCertificate : tls::kClientCertificate);
  const std::string key = out + '/' + (server ? tls::kServerKey : tls::kClientKey);
  const auto issued = tls::issue(request, &authority);
  if (!issued) return tl::unexpected(issued.error());
  auto done = record(directory, issued->certificate, request.common_name);
  if (done) done = write_file(key, issued->key.text(), 0600);
  if (done) done = write_file(certificate, issued->certificate, 0644);
  if (done) {
    say("made " + certificate + " for '" + request.common_name + "' and its key\n");
  }
  return done;
}

tl::expected<std::vector<std::string>, std::string> serials_of_name(const std::string& directory,
                                                                    const std::string& name) {
  const auto issued = text_of(directory + kIssued);
  if (!issued) return tl::unexpected(issued.error());
  std::vector<std::string> serials;
  std::istringstream lines{*issued};
  for (std::string serial, whose; lines >> serial && std::getline(lines >> std::ws, whose);) {
    if (whose == name) serials.push_back(serial);
  }
  return serials;
}

/// The serial numbers that a word of the command line stands for. A name is meant before a
/// directory that is called so.
tl::expected<std::vector<std::string>, std::string> serials_of(const std::string& directory,
                                                               const std::string& who) {
  auto serials = serials_of_name(directory, who);
  if (!serials || !serials->empty()) return serials;
  std::error_code unknown;
  for (const std::string& path : {who + '/' + tls::kClientCertificate, who}) {
    if (!std::filesystem::is_regular_file(path, unknown)) continue;
    const auto facts = facts_in(path);
    if (!facts) return tl::unexpected(facts.error());
    return std::vector{facts->serial};
  }
  return tl::unexpected(directory + kIssued + " has no certificate of '" + who +
                        "'; name the file of the certificate itself, or its directory");
}

Done withdraw(const CertificateWish& wish) {
  const auto lock = lock_files_beside(wish.directory + kIssued);
  if (!lock) return tl::unexpected(lock.error());
  const std::string path = wish.directory + '/' + tls::kCaCertificate;
  if (!tls::is_there(path)) {
    return tl::unexpected(path + ": there is no authority; name the directory of certgen");
  }
  const auto authority = find_authority(wish.directory);
  if (!authority) return tl::unexpected(authority.error());
  const auto ends = tls::certificate_facts(authority->certificate);
  if (!ends) return tl::unexpected(path + ": " + ends.error());
  const auto serials = serials_of(wish.directory, wish.withdraw);
  if (!serials) return tl::unexpected(serials.error());
  const std::string list = wish.directory + '/' + tls::kRevocations;
  const auto before = text_of(list);
  if (!before) return tl::unexpected(before.error());
  const auto text = tls::withdraw(*authority, *before, *serials, std::time(nullptr), ends->end);
  if (!text) return tl::unexpected(list + ": " + text.error());
  if (auto done = write_file(list, *text, 0644); !done) return done;
  const std::size_t count = serials->size();
  say("withdrew " + std::to_string(count) + (count == 1 ? " certificate" : " certificates") +
      " of '" + wish.withdraw + "' in " + list +
      "; copy it to all servers of this authority, and reload them\n");
  return {};
}

Done make_certificates(const CertificateWish& wish) {
  if (!wish.client.empty()) {
    if (const auto fault = tls::fault_of_identity(wish.client); !fault.empty()) {
      return tl::unexpected("the name '" + wish.client + "' " + fault);
    }
  }
  const std::string& out = wish.out.empty() ? wish.directory : wish.out;
  for (const std::string& directory : {wish.directory, out}) {
    if (auto done = make_directory(directory); !done) return done;
  }
  const auto lock = lock_files_beside(wish.directory + kIssued);
  if (!lock) return tl::unexpected(lock.error());
  const auto authority = find_authority(wish.directory);
  if (!authority) return tl::unexpected(authority.error());
  const std::time_t begin = std::time(nullptr) - kClockSkew;
  const std::time_t end = begin + kClockSkew + wish.days * kDay;
  Done done;
  if (!wish.server.empty()) {
    done = issue_into(out, wish.directory, *authority,
                      {.use = For::server,
                       .common_name = wish.server.front(),
                       .hosts = wish.server,
                       .begin = begin,
                       .end = end});
  }
  if (done && !wish.client.empty()) {
    done = issue_into(
        out, wish.directory, *authority,
        {.use = For::client, .common_name = wish.client, .hosts = {}, .begin = begin, .end = end});
  }
  if (done && out != wish.directory) {
    done = write_file(out + '/' + tls::kCaCertificate, authority->certificate, 0644);
  }
  return done;
}

std::optional<EarlyExit> parse_certgen(int argc, const char* const* argv, Done& done) {
  CLI::App app{kCertgenDescription, "rnbd-ctl certgen"};
  CertificateWish wish;
  app.add_option("DIRECTORY", wish.directory, "Where the authority is, or will be.");
  app.add_option("--server", wish.server,
                 "A certificate for a server: the names and addresses that clients use for it.")
      ->type_name("HOST[,HOST...]")
      ->delimiter(',');
  app.add_option("--client", wish.client, "A certificate for a client: who it is.")
      ->type_name("NAME");
  app.add_option("--out", wish.out, "Put what is made there, with a copy of ca-cert.pem.")
      ->type_name("DIRECTORY");
  app.add_option("--withdraw", wish.withdraw,
                 "Withdraw the certificates of a client or server, or the one in a file.")
      ->type_name("WHO");
  app.add_option("--days", wish.days, "For how long they hold (default 398).")
      ->type_name("N")
      ->check([](const std::string& text) { return complaint_about_number(text, 1, 3650); });
  if (auto early = parse_arguments(app, kCertgenExamples, "name one directory", argc, argv)) {
    return early;
  }
  if (wish.directory.empty()) return usage_error(app, "write rnbd-ctl certgen DIRECTORY ...");
  const bool makes = !wish.server.empty() || !wish.client.empty();
  if (!makes && wish.withdraw.empty()) {
    return usage_error(app, "say what to make: --server HOST or --client NAME");
  }
  if (makes && !wish.withdraw.empty()) {
    return usage_error(app,
                       "--withdraw takes all that the name has: withdraw first, then make anew");
  }
  done = makes ? make_certificates(wish) : withdraw(wish);
  return std::nullopt;
}

// ---- The list of keys --------------------------------------------------------------------------

constexpr const char* kKeysDescription =
    "rnbd-ctl keys - show which keys and certificates there are, or take one away\n"
    "\n"
    "Of a FILE of shared keys it shows the names, and of a DIRECTORY the certificates and when\n"
    "they end. A fingerprint is the same where the key is the same; keys are never shown.\n"
    "--remove takes the key NAME out of FILE; a reload of the server ends its sessions.\n";
constexpr const char* kKeysExamples = R"(Examples:
  Has the client the key that the server has?
    rnbd-ctl keys /etc/rnbd/keys.psk

  host1 has its new key host1/2, and the old one goes:
    rnbd-ctl keys /etc/rnbd/keys.psk --remove host1
    rnbd-ctl /run/rnbd-server/control reload)";

/// A line of the list.
struct Shown {
  std::string name, user, fingerprint, ends;
  std::string warning;  ///< "ends in 12 days"; "" = none
};

std::string date_of(std::time_t when) {
  std::array<char, 32> text{};
  struct tm parts {};
  if (gmtime_r(&when, &parts) == nullptr) return "?";
  return {text.data(), std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts)};
}

tl::expected<std::vector<Shown>, std::string> shared_keys(const std::string& file) {
  const auto content = tls::read_key_file(file, tls::Kind::secret);
  if (!content) return tl::unexpected(content.error());
  const auto keys = tls::parse_psk(content->text());
  if (!keys) return tl::unexpected(file + ": " + keys.error());
  std::vector<Shown> all;
  for (const tls::PskKey& key : *keys) {
    all.push_back(
        {key.name, std::string{tls::identity_of(key.name)}, tls::fingerprint(key.secret), "", ""});
  }
  return all;
}

tl::expected<std::vector<Shown>, std::string> certificates(const std::string& directory) {
  std::vector<Shown> all;
  for (const char* const name :
       {tls::kCaCertificate, tls::kServerCertificate, tls::kClientCertificate}) {
    const std::string path = directory + '/' + name;
    if (!tls::is_there(path)) continue;
    const auto facts = facts_in(path);
    if (!facts) return tl::unexpected(facts.error());
    all.push_back({name, facts->name, facts->fingerprint, date_of(facts->end),
                   tls::end_soon(facts->end, std::time(nullptr))});
  }
  if (all.empty()) {
    return tl::unexpected(directory + ": has no certificate; rnbd-ctl certgen makes them");
  }
  const std::string lists = directory + '/' + tls::kRevocations;
  if (!tls::is_there(lists)) return all;
  const auto content = tls::read_key_file(lists, tls::Kind::open);
  if (!content) return tl::unexpected(content.error());
  const auto facts = tls::list_facts(content->text());
  if (!facts) return tl::unexpected(lists + ": " + facts.error());
  all.push_back({tls::kRevocations, "(" + std::to_string(facts->withdrawn) + " withdrawn)", "-",
                 facts->next ? date_of(*facts->next) : "",
                 facts->next ? tls::list_ends_soon(*facts->next, std::time(nullptr)) : ""});
  return all;
}

void print(const std::vector<Shown>& all) {
  const auto column = [](std::string text, std::size_t width) {
    text.resize(std::max(text.size(), width), ' ');
    return text + ' ';
  };
  const auto line = [&](const std::string& key, const std::string& user,
                        const std::string& fingerprint, const std::string& ends) {
    say(column(key, 24) + column(user, 24) + column(fingerprint, 16) + ' ' + ends + '\n');
  };
  line("KEY", "USER", "FINGERPRINT", "ENDS");
  for (const Shown& key : all) {
    const std::string warning = key.warning.empty() ? "" : " (" + key.warning + ")";
    line(key.name, key.user, key.fingerprint, (key.ends.empty() ? "-" : key.ends) + warning);
  }
}

void print_json(const std::vector<Shown>& all) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Shown& key : all) {
    nlohmann::ordered_json one{
        {"key", key.name}, {"user", key.user}, {"fingerprint", key.fingerprint}};
    if (!key.ends.empty()) one["ends"] = key.ends;
    if (!key.warning.empty()) one["warning"] = key.warning;
    list.push_back(std::move(one));
  }
  say(json_text({{"keys", std::move(list)}}));
}

Done list_keys(const std::string& path, bool json) {
  std::error_code unknown;
  const bool is_directory = std::filesystem::is_directory(path, unknown);
  const auto all = is_directory ? certificates(path) : shared_keys(path);
  if (!all) return tl::unexpected(all.error());
  json ? print_json(*all) : print(*all);
  return {};
}

/// Everything but the line of this key, with comments and order as they were.
tls::Content without(std::string_view text, const std::string& name) {
  std::vector<char> kept;
  kept.reserve(text.size());  // or parts of keys would stay where it grew from
  while (!text.empty()) {
    const std::size_t size = std::min(text.find('\n'), text.size() - 1) + 1;
    const std::string_view line = text.substr(0, size);
    if (line.starts_with('#') || line.substr(0, line.rfind(':')) != name) {
      kept.insert(kept.end(), line.begin(), line.end());
    }
    text.remove_prefix(size);
  }
  return tls::Content{std::move(kept)};
}

Done remove_key(const std::string& file, const std::string& name) {
  const auto lock = lock_files_beside(file);
  if (!lock) return tl::unexpected(lock.error());
  const auto content = tls::read_key_file(file, tls::Kind::secret);
  if (!content) return tl::unexpected(content.error());
  const auto keys = tls::parse_psk(content->text());
  if (!keys) return tl::unexpected(file + ": " + keys.error());
  if (std::ranges::find(*keys, name, &tls::PskKey::name) == keys->end()) {
    return tl::unexpected(file + ": has no key '" + name + "'; rnbd-ctl keys " + file +
                          " shows which there are");
  }
  if (keys->size() == 1) {
    return tl::unexpected(file + ": '" + name +
                          "' is its only key, and without any the server would keep it; make "
                          "another one first (rnbd-ctl keygen)");
  }
  const tls::Content rest = without(content->text(), name);
  if (auto done = write_file(file, rest.text(), 0600); !done) return done;
  say("the key '" + name + "' is no longer in " + file +
      "; a reload of the server ends its sessions\n");
  return {};
}

std::optional<EarlyExit> parse_keys(int argc, const char* const* argv, Done& done) {
  CLI::App app{kKeysDescription, "rnbd-ctl keys"};
  std::string path, name;
  bool json = false;
  app.add_option("PATH", path, "A file of shared keys, or a directory of certificates.");
  app.add_option("--remove", name, "Take this key out of the file.")->type_name("NAME");
  app.add_flag("--json", json, "Print JSON.");
  if (auto early = parse_arguments(app, kKeysExamples, "name one file or directory", argc, argv)) {
    return early;
  }
  if (path.empty()) return usage_error(app, "write rnbd-ctl keys FILE");
  done = name.empty() ? list_keys(path, json) : remove_key(path, name);
  return std::nullopt;
}

}  // namespace

std::optional<int> run_key_command(int argc, const char* const* argv) {
  if (argc < 2) return std::nullopt;
  const std::string_view command{argv[1]};
  std::optional<EarlyExit> (*const run)(int, const char* const*, Done&) =
      command == "keygen"    ? parse_keygen
      : command == "certgen" ? parse_certgen
      : command == "keys"    ? parse_keys
                             : nullptr;
  if (run == nullptr) return std::nullopt;
  Done done;
  const auto early = run(argc - 1, argv + 1, done);
  if (early) return leave_early(*early);
  if (done) return 0;
  complain(done.error(), argv[1]);
  return 1;
}

}  // namespace rnbd
