// SPDX-License-Identifier: Apache-2.0

package host

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// authority is the lab's certificate authority, created for each lab.
type authority struct {
	key     *ecdsa.PrivateKey
	cert    *x509.Certificate
	certPEM []byte
}

func newAuthority() (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate the certificate authority's key: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "bulkhead lab"},
		NotBefore: time.Now().Add(-24 * time.Hour), NotAfter: time.Now().Add(365 * 24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("create the certificate authority: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("parse the certificate authority: %w", err)
	}
	return &authority{key: key, cert: cert, certPEM: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}, nil
}

// identity is a certificate and its key, as PEM.
type identity struct{ cert, key []byte }

// issue issues a certificate for clients and servers.
func (a *authority) issue(name, group string, dns []string, ips ...netip.Addr) (identity, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return identity{}, fmt.Errorf("generate the key of %s: %w", name, err)
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		return identity{}, fmt.Errorf("generate the serial number of %s: %w", name, err)
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name},
		NotBefore: a.cert.NotBefore, NotAfter: a.cert.NotAfter, DNSNames: dns,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	if group != "" {
		template.Subject.Organization = []string{group}
	}
	for _, ip := range ips {
		template.IPAddresses = append(template.IPAddresses, net.IP(ip.AsSlice()))
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return identity{}, fmt.Errorf("sign the certificate of %s: %w", name, err)
	}
	keyPEM, err := keyToPEM(key)
	if err != nil {
		return identity{}, err
	}
	return identity{pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), keyPEM}, nil
}

func keyToPEM(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode a key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}

// kubeconfig returns a kubeconfig with embedded certificates.
func (a *authority) kubeconfig(id identity, f Families) ([]byte, error) {
	c := clientcmdapi.NewConfig()
	c.Clusters["lab"] = &clientcmdapi.Cluster{
		Server:                   "https://" + net.JoinHostPort(APIHost(f), strconv.Itoa(apiPort)),
		CertificateAuthorityData: a.certPEM,
	}
	c.AuthInfos["lab"] = &clientcmdapi.AuthInfo{ClientCertificateData: id.cert, ClientKeyData: id.key}
	c.Contexts["lab"] = &clientcmdapi.Context{Cluster: "lab", AuthInfo: "lab"}
	c.CurrentContext = "lab"
	return clientcmd.Write(*c)
}

// writePKI writes the lab's certificates and kubeconfigs to pki and, for each node, to
// the share.
func (s Spec) writePKI() error {
	ca, err := newAuthority()
	if err != nil {
		return err
	}
	files := map[string][]byte{s.path("pki/ca.crt"): ca.certPEM}

	ips := append([]netip.Addr{netip.MustParseAddr("127.0.0.1")}, gateways(Dual)...)
	for _, cidr := range serviceCIDRs {
		ips = append(ips, nth(netip.MustParsePrefix(cidr), 1).Addr())
	}
	names := []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"}
	for _, c := range []struct{ file, name, group string }{
		{"apiserver", "kube-apiserver", ""},
		{"kubelet-client", "kube-apiserver-kubelet-client", "system:masters"},
	} {
		id, err := ca.issue(c.name, c.group, names, ips...)
		if err != nil {
			return err
		}
		files[s.path("pki", c.file+".crt")], files[s.path("pki", c.file+".key")] = id.cert, id.key
	}
	for _, c := range []struct{ file, name, group string }{
		{"admin", "lab-admin", "system:masters"},
		{"controller-manager", "system:kube-controller-manager", ""},
		{"scheduler", "system:kube-scheduler", ""},
	} {
		id, err := ca.issue(c.name, c.group, nil)
		if err != nil {
			return err
		}
		if files[s.path("pki", c.file+".kubeconfig")], err = ca.kubeconfig(id, s.Families); err != nil {
			return fmt.Errorf("kubeconfig of %s: %w", c.name, err)
		}
	}
	accounts, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("generate the key for service account tokens: %w", err)
	}
	if files[s.path("pki/service-accounts.key")], err = keyToPEM(accounts); err != nil {
		return err
	}
	for _, n := range s.Nodes {
		dir := s.path("share/nodes", n.Name)
		var ips []netip.Addr
		for _, a := range n.Addresses {
			ips = append(ips, a.Addr())
		}
		// One certificate for client and server: kubelet would need seconds to create its own under emulation.
		id, err := ca.issue("system:node:"+n.Name, "system:nodes", []string{n.Name}, ips...)
		if err != nil {
			return err
		}
		config, err := ca.kubeconfig(id, s.Families)
		if err != nil {
			return fmt.Errorf("kubeconfig of %s: %w", n.Name, err)
		}
		for name, data := range map[string][]byte{"kubelet.crt": id.cert, "kubelet.key": id.key, "kubeconfig": config, "ca.crt": ca.certPEM} {
			files[filepath.Join(dir, name)] = data
		}
	}
	for path, data := range files {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return fmt.Errorf("create the directory of %s: %w", path, err)
		}
		if err := os.WriteFile(path, data, 0o600); err != nil {
			return fmt.Errorf("write %s: %w", path, err)
		}
	}
	return nil
}
