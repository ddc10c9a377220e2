import sys

import boto3

db = boto3.client("dynamodb", endpoint_url=sys.argv[1], region_name="eu-west-1", aws_access_key_id="AKIA1", aws_secret_access_key="s")
token = {"ClientRequestToken": sys.argv[2]} if sys.argv[2:] else {}
db.transact_write_items(TransactItems=[{"Put": {"TableName": "t", "Item": {"id": {"S": "1"}}}}], **token)
