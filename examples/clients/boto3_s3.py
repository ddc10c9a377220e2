import sys

import boto3

s3 = boto3.client("s3", endpoint_url=sys.argv[1], region_name="eu-west-1", aws_access_key_id="AKIA1", aws_secret_access_key="s")
s3.put_object(Bucket="b", Key="o", Body=b"hello")
